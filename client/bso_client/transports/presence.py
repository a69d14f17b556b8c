"""The trials that processes of this machine train: where a process is gone, nobody waits for its trial.

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

from bso.private_files import FILE_MODE, make_file, make_folders

_PATIENCE_S = 0.5  # another process that begins holds the lock for the moment in which it looks


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

    @classmethod
    def beside(cls, path: Path) -> Presence:
        """Of those that share an SQLite file."""
        return cls(path.with_name(f"{path.name}-trials"))

    def enter(self, trained: Trained) -> None:
        """Say that this process trains a trial, until ``leave`` or its end. Raises OSError."""
        key = (trained.job_id, trained.trial_number)
        if key in self._held:
            return
        make_folders(self._folder)
        record = self._folder / f"{trained.job_id}~{trained.trial_id}.json"
        lock = _lock_of(record)
        try:
            lock.acquire(timeout=_PATIENCE_S)
        except Timeout:  # a copy of the process that began the trial holds it
            return
        make_file(record)
        record.write_text(json.dumps(asdict(trained)), encoding="utf-8")
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
        with self._unlocked(f"{job_id}~*.json") as found:
            yield [trained for trained, _ in found]
            for _, lock in found:
                _remove(Path(lock.lock_file).with_suffix(".json"))

    def ended(self) -> list[Trained]:
        """Such trials of all jobs, for the eye: nothing is forgotten. Raises OSError.

        A training that begins in the moment of this look takes them for living ones, and leaves them to their leases.
        """
        with self._unlocked("*.json") as found:
            return [trained for trained, _ in found]

    @contextmanager
    def _unlocked(self, pattern: str) -> Iterator[list[tuple[Trained, FileLock]]]:
        """The records that no process holds, each with its lock, which is held during the block."""
        found: list[tuple[Trained, FileLock]] = []
        try:
            for record in sorted(self._folder.glob(pattern)):
                lock = _lock_of(record)
                try:
                    lock.acquire(timeout=0)
                    found.append((Trained(**json.loads(record.read_text(encoding="utf-8"))), lock))
                except (Timeout, PermissionError):  # it lives, or is another user's
                    continue
                except (ValueError, TypeError, FileNotFoundError):  # half written, or removed meanwhile
                    _remove(record)
                    lock.release()
            yield found
        finally:
            for _, lock in found:
                lock.release()

    def close(self) -> None:
        """Let go of all: whatever has not ended may be resumed by others."""
        for lock in self._held.values():
            lock.release()
        self._held.clear()


def _lock_of(record: Path) -> FileLock:
    """The kernel's lock or none: filelock's substitute judges by process ids, which differ between containers."""
    return FileLock(record.with_suffix(".lock"), mode=FILE_MODE, fallback_to_soft=False)


def _remove(record: Path) -> None:
    record.unlink(missing_ok=True)
    record.with_suffix(".lock").unlink(missing_ok=True)
