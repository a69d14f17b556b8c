"""A file of the journal: one record a line, each with its checksum, appended and fsynced, under a lock.

A living process holds the lock of its file, which the kernel lifts however the process ends.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bso.private_files import FILE_MODE, FOLDER_MODE, opener
from bso_client.atomic import replace_file

if TYPE_CHECKING:  # where it is used it is imported: most processes keep nothing, and need not wait for it
    from filelock import FileLock

LETTER, DELIVERED, IDENTIFIED = "letter", "delivered", "identified"
"""What a record may be: a command that is kept, that it is delivered, and what its trial is called."""
SET_ASIDE = "set-aside.jsonl"


class JournalFile:
    """One open file of the journal, and its lock."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path = path
        self.open_ids: set[str] = set()
        self._lock = lock
        self._end: int | None = None  # of the last whole line

    @classmethod
    def new(cls, folder: Path, *, about: Mapping[str, str]) -> JournalFile:
        """A file of this process' own, after all that are there. Raises OSError.

        ``about`` is written beside the folder, unless it is there.
        """
        _make_folders(folder)
        description, words = folder.parent / "destination.json", json.dumps(about)
        if not description.exists() or description.read_bytes() != words.encode():
            replace_file(description, words)
            _sync_folder(folder.parent)
        number = max((int(path.stem) for path in files_in(folder)), default=0) + 1
        while (file := cls._create(folder / f"{number:08d}.jsonl")) is None:
            number += 1
        _sync_folder(folder)
        return file

    @classmethod
    def _create(cls, path: Path) -> JournalFile | None:
        """An empty file; None: another process has taken its name. It is locked before it is there for others."""
        from filelock import FileLock, Timeout

        lock = FileLock(lock_of(path), mode=FILE_MODE)
        try:
            lock.acquire(timeout=0)
            os.close(opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except OSError as error:
            lock.release()
            if isinstance(error, Timeout | FileExistsError):
                return None
            raise
        return cls(path, lock)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record, to disk. Raises OSError; then nothing is added."""
        line = _line(record)
        if self._end is None:
            self._end = self.path.read_bytes().rfind(b"\n") + 1
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, self._end)  # what a write without space has left
            written = 0
            while written < len(line):  # after a short write the next one says why
                written += os.pwrite(descriptor, line[written:], self._end + written)
            os.fsync(descriptor)
            self._end += len(line)
        finally:
            os.close(descriptor)

    def delivered(self, command_id: str) -> None:
        """Note that a command is delivered."""
        if command_id in self.open_ids:
            self.append({"kind": DELIVERED, "command_id": command_id})
            self.open_ids.discard(command_id)

    def delete(self) -> None:
        """Delete it: there is nothing left in it."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of it."""
        if not self.path.exists():
            lock_of(self.path).unlink(missing_ok=True)
        self._lock.release()


def files_in(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if path.stem.isdigit())


def lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The sound records of a file, in their order."""
    for line in lines(path):
        if is_sound(line):
            yield record_of(line)


def record_of(line: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(line.partition(b" ")[2])
    return record


def lines(path: Path) -> Sequence[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]  # after the last one there is nothing, or a torn one
    except FileNotFoundError:
        return []


def is_sound(line: bytes) -> bool:
    checksum, _, body = line.partition(b" ")
    return checksum == _checksum(body)


def set_aside(folder: Path, record: Mapping[str, Any]) -> None:
    with open(folder / SET_ASIDE, "ab", opener=opener) as file:
        # An empty line is no record, and one that a kill or a full disk has torn ends here.
        file.write(b"\n" + _line({**record, "set_aside_at": timestamp()}))
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return _checksum(body) + b" " + body + b"\n"


def _checksum(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)


def _make_folders(folder: Path) -> None:
    """Make a folder of the journal and those above it, each synchronised with the one that it is in."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)
        _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    """See to it that the names in a folder outlive a crash of the machine: fsync of a file keeps its contents alone."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
