"""What a job's last process has learnt, noted in the state directory: enough to go on while the optimizer is away."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bso.domain.job_spec import InvalidSpec, JobSpec, resolve_spec
from bso.domain.trial import Outcome
from bso.private_files import make_folders
from bso_client.atomic import replace_file
from bso_client.training.recurrence import CurrentRecurrence, Failure
from bso_client.training.state import TrainingState

logger = logging.getLogger("bso")

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A job as it was last seen. ``best_cost`` [J] is that of the best batch size's last converged training.

    ``ended`` is the key of the last training that has ended, and cannot be resumed, and ``ended_as`` says how.
    ``failed`` are those of its recurrence, to which the user has given the name ``recurrence_id`` (None: no name), if
    another attempt is due.
    """

    job_id: str
    spec: JobSpec
    best_batch_size: int | None = None
    best_cost: float | None = None
    ended: str = ""
    ended_as: str = ""
    recurrence_id: str | None = None
    failed: tuple[Failure, ...] = ()

    def with_result(self, training: TrainingState, after: CurrentRecurrence) -> Note:
        """The note after a training, whose batch size may be the best known; ``after``: where its recurrence stands."""
        note = replace(self, recurrence_id=after.given_id, failed=after.failed)
        if not training.may_be_resumed:
            note = replace(note, ended=training.key, ended_as=how_ended(training))
        if training.outcome is not Outcome.CONVERGED:
            return note
        is_best = note.best_cost is None or training.cost <= note.best_cost
        if is_best or training.batch_size == note.best_batch_size:
            return replace(note, best_batch_size=training.batch_size, best_cost=training.cost)
        return note


def how_ended(training: TrainingState) -> str:
    """The outcome of a training that has ended, and why."""
    return "" if training.outcome is None else f"{training.outcome.value} ({training.outcome_reason})"


class Notebook:
    """One small JSON file per job. What cannot be read or written is a warning, never an error."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "jobs"

    def read(self, job_id: str) -> Note | None:
        """The note about a job; None if this state directory has none, or none that can be read."""
        try:
            data = json.loads((self._folder / f"{job_id}.json").read_text(encoding="utf-8"))
            return _note_from(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, InvalidSpec) as error:
            _warn(f"the note about job {job_id} cannot be read: {error!r}")
            return None

    def write(self, note: Note) -> None:
        """Replace a job's note atomically: a process that dies meanwhile leaves the old one."""
        try:
            make_folders(self._folder)
            replace_file(self._folder / f"{note.job_id}.json", json.dumps({"format": _FORMAT, **asdict(note)}))
        except OSError as error:
            _warn(f"cannot note what is known of job {note.job_id} in {self._folder}: {error}")


def _note_from(data: Any) -> Note:
    if data["format"] != _FORMAT:
        raise ValueError(f"expected format {_FORMAT}, got {data['format']!r}")
    best, cost = data["best_batch_size"], data["best_cost"]
    return Note(
        job_id=str(data["job_id"]),
        spec=resolve_spec(data["spec"]),
        best_batch_size=None if best is None else int(best),
        best_cost=None if cost is None else float(cost),
        ended=str(data["ended"]),
        ended_as=str(data["ended_as"]),
        recurrence_id=None if data["recurrence_id"] is None else str(data["recurrence_id"]),
        failed=tuple(
            Failure(batch_size=int(one["batch_size"]), is_out_of_memory=bool(one["is_out_of_memory"]))
            for one in data["failed"]
        ),
    )


def _warn(words: str) -> None:
    logger.warning("%s", words, extra={"action": "note_failed"})
