"""A trial kept in the Trainer's checkpoint folders, as ``trial-<number>/checkpoint-<step>/bso_trial.json``."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bso_client.errors import CannotResume
from bso_client.integrations.reporter import is_of
from bso_client.once import warn_once
from bso_client.optimizer import BatchSizeOptimizer
from bso_client.trial import Trial

logger = logging.getLogger("bso")

FILE = "bso_trial.json"


def resumable_trials(bso: BatchSizeOptimizer, args: Any) -> Iterator[Trial]:
    """``bso.trials()``, beginning with the trial of the newest checkpoint under ``args.output_dir``, if there is one.

    ``args`` are the TrainingArguments that apply_trial is given. A trial that has ended meanwhile is not resumed: its
    checkpoints stay where they are, and training begins anew, with a warning.
    """
    kept = newest_kept(Path(args.output_dir))
    try:
        if kept is not None:
            bso.load_state_dict(_read(kept))
        yield from bso.trials()
    except CannotResume as error:
        logger.warning("training begins anew: %s", error, extra={"action": "checkpoint_not_resumed"})
        if kept is not None:
            forget_trial(kept.parent.parent)
        yield from bso.trials()


def folder_of(trial: Trial, output_dir: Path) -> Path:
    """Where the checkpoints of a trial belong: each has a folder of its own, since a checkpoint fits one batch size."""
    for kept in _kept_in(output_dir):
        if _is_of(trial, _read(kept)):
            return kept.parent.parent
    return output_dir / f"trial-{'unregistered' if trial.trial_number is None else trial.trial_number}"


def newest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the most steps in a trial's folder that the trial was kept with."""
    kept = [path.parent for path in folder.glob(f"checkpoint-*/{FILE}") if _read(path)]
    return max(kept, key=_step, default=None)


def newest_kept(output_dir: Path) -> Path | None:
    """The trial that was kept last, among all in a folder."""
    return max(_kept_in(output_dir), key=lambda path: path.stat().st_mtime_ns, default=None)


def keep_trial(trial: Trial, checkpoint: Path, *, should_write: bool) -> None:
    """Write the trial into a checkpoint folder; what fails is logged. In data-parallel training all ranks call this."""
    try:
        state = trial.state_dict()
        if should_write and checkpoint.is_dir():
            partial = checkpoint / f"{FILE}.partial"
            partial.write_text(json.dumps(state, indent=2), encoding="utf-8")
            partial.replace(checkpoint / FILE)
    except Exception:  # a trainer goes on
        logger.exception("the trial could not be kept with %s", checkpoint, extra={"action": "trial_not_kept"})


def forget_trial(folder: Path) -> None:
    """Let nobody resume the trial of a folder: it has ended. The checkpoints themselves stay; what fails is logged."""
    for kept in folder.glob(f"checkpoint-*/{FILE}"):
        try:
            kept.unlink(missing_ok=True)
        except OSError as error:  # storage that refuses to delete; a trial that has ended is not resumed anyway
            logger.warning("%s stays: %s", kept, error, extra={"action": "trial_not_forgotten"})


def _kept_in(output_dir: Path) -> list[Path]:
    return [kept for kept in sorted(output_dir.glob(f"trial-*/checkpoint-*/{FILE}")) if _read(kept)]


def _read(kept: Path) -> Mapping[str, Any]:
    """What was kept; nothing if the file is damaged: nobody can resume it, and an older one counts."""
    try:
        state = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        state = None
    if isinstance(state, dict) and state:
        return state
    warn_once(
        f"{kept} is damaged, so its checkpoint is not resumed; an older one is, if there is one",
        action="checkpoint_damaged",
    )
    return {}


def _is_of(trial: Trial, state: Mapping[str, Any]) -> bool:
    return (state.get("trial_number") is not None or bool(trial.epoch)) and is_of(trial, state)


def _step(checkpoint: Path) -> int:
    found = re.search(r"(\d+)$", checkpoint.name)
    return int(found.group(1)) if found else -1
