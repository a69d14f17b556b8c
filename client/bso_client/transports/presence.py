"""Which trials living processes of this machine train, so that one whose process is gone is not waited for.

A process holds the lock of a file for each trial that it trains, which the kernel lifts however the process ends: that
needs no process ids, which may be given again, and holds across containers that share the file. Where a child process
outlives the training with the lock, the trial's lease decides, as it does for trainings on other machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trial that a process trains."""

    job_id: str
    trial_number: int
    trial_id: str


class Presence:
    """The trials that this process trains, and those that no process trains any more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[tuple[str, int], FileLock] = {}

    def enter(self, trained: Trained) -> None:
        """Say that this process trains a trial, until ``leave`` or its end. Raises OSError."""
        key = (trained.job_id, trained.trial_number)
        if key in self._held:
            return
        self._folder.mkdir(exist_ok=True)
        lock = FileLock(_lock_of(self._record(trained.trial_id)))
        try:
            lock.acquire(timeout=0)
        except Timeout:  # a copy of the process that began the trial holds it
            return
        self._record(trained.trial_id).write_text(json.dumps(asdict(trained)), encoding="utf-8")
        self._held[key] = lock

    def leave(self, job_id: str, trial_number: int) -> None:
        """Say that the trial has ended. Raises OSError."""
        lock = self._held.pop((job_id, trial_number), None)
        if lock is not None:
            _remove(Path(lock.lock_file).with_suffix(".json"))
            lock.release()

    @contextmanager
    def gone(self, job_id: str) -> Iterator[list[Trained]]:
        """The trials of a job whose processes have ended without an end of the trial; forgotten after the block."""
        found: list[tuple[Trained, FileLock]] = []
        try:
            for record in sorted(self._folder.glob("*.json")):
                lock = FileLock(_lock_of(record))
                try:
                    lock.acquire(timeout=0)
                    trained = Trained(**json.loads(record.read_text(encoding="utf-8")))
                except Timeout:
                    continue
                except (ValueError, TypeError, FileNotFoundError):  # torn while it was written, or removed meanwhile
                    _remove(record)
                    lock.release()
                    continue
                if trained.job_id == job_id:
                    found.append((trained, lock))
                else:
                    lock.release()
            yield [trained for trained, _ in found]
            for trained, _ in found:
                _remove(self._record(trained.trial_id))
        finally:
            for _, lock in found:
                lock.release()

    def close(self) -> None:
        """Let go of all: whatever has not ended may be resumed by others."""
        for lock in self._held.values():
            lock.release()
        self._held.clear()

    def _record(self, trial_id: str) -> Path:
        return self._folder / f"{trial_id}.json"


def _lock_of(record: Path) -> Path:
    return record.with_suffix(".lock")


def _remove(record: Path) -> None:
    record.unlink(missing_ok=True)
    _lock_of(record).unlink(missing_ok=True)
