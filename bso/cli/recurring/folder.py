"""The folder of a run: what was launched, what came of it, and every word that the training printed.

    run.json                                the command, how often, when
    recurrence-0001/recurrence.json         its id, launches, exit codes, trials
    recurrence-0001/launch-1.log            what the first launch printed
    recurrence-0001/trials.jsonl            what its trainings sent and received

Files are replaced as a whole, before each launch and after it, so that whoever finds them finds them whole.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from bso.cli.recurring.processes import this_machine
from bso.cli.recurring.records import FORMAT, Recurrence, Run
from bso.domain.errors import Misconfigured

_OWN_FILES = {"recurrence.json", "recurrence.new", "trials.jsonl", "process"}
R = TypeVar("R", Run, Recurrence)


class RunFolder:
    """Where a run keeps what it knows. One driver writes at a time; anybody may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def occupied(self) -> Iterator[None]:
        """Make the folder and keep other drivers out, until this process ends. Raises Misconfigured where one is in."""
        import fcntl

        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("a+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                holder = lock.read().strip() or "another process"
                raise Misconfigured(
                    f"{self.path} is in use by {holder}: one `bso recur` at a time may write there. "
                    f"Look on with `bso recur --summary --log-dir {self.path}`, or use another folder"
                ) from error
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {this_machine().partition(' ')[0]}\n")
            lock.flush()
            yield

    def run(self) -> Run | None:
        """What is run here; None in a new folder. Raises Misconfigured where it cannot be read."""
        return _read(self.path / "run.json", Run)

    def save_run(self, run: Run) -> None:
        """Keep what is run here."""
        _replace(self.path / "run.json", run)

    def recurrences(self) -> list[Recurrence]:
        """All recurrences, in order. Raises Misconfigured where one cannot be read."""
        found = (_read(path, Recurrence) for path in sorted(self.path.glob("recurrence-*/recurrence.json")))
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    def save(self, recurrence: Recurrence) -> None:
        """Keep a recurrence as it is now."""
        folder = self.of(recurrence)
        folder.mkdir(exist_ok=True)
        _replace(folder / "recurrence.json", recurrence)

    def of(self, recurrence: Recurrence) -> Path:
        """The folder of a recurrence."""
        return self.path / recurrence.folder_name

    def trial_log(self, recurrence: Recurrence) -> Path:
        """What the trainings of a recurrence tell the optimizer and hear back."""
        return self.of(recurrence) / "trials.jsonl"

    def holds_more(self, recurrence: Recurrence) -> bool:
        """Whether the training has left something in the recurrence's folder, such as a checkpoint."""
        return any(
            path.name not in _OWN_FILES and not path.match("launch-*.log") for path in self.of(recurrence).iterdir()
        )

    def sign_in(self, recurrence: Recurrence) -> Path:
        """Where the process of the running launch leaves its name."""
        return self.of(recurrence) / "process"


def _read(path: Path, what: type[R]) -> R | None:
    from bso.schema.envelope import validated
    from bso.schema.errors import MalformedMessage

    try:
        data: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Misconfigured(f"{path} is damaged ({error}): use another folder") from error
    if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
        raise Misconfigured(f"{path} was written by another release of bso: use that one, or another folder")
    try:
        found: R = validated(what, data, str(path))
    except MalformedMessage as error:
        raise Misconfigured(f"{error}: use another folder") from error
    return found


def _replace(path: Path, value: object) -> None:
    from bso.schema.envelope import dump

    beside = path.with_suffix(".new")
    with beside.open("wb") as stream:
        stream.write(json.dumps(json.loads(dump(value)), indent=1).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
