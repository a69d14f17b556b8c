"""Commands that could not be delivered, kept on disk: for this process to deliver, for the next one, or by hand.

One file for each process, by address, login and job::

    STATE_DIR/journal/PLACE/JOB/NUMBER.jsonl    one record a line, each with its checksum, appended and fsynced
    STATE_DIR/journal/PLACE/JOB/set-aside.jsonl commands that the optimizer has refused, with the reason
    STATE_DIR/journal/PLACE/place.json          the address, without its password, and the login

A living process holds the lock of its file, which the kernel lifts however the process ends. Others then deliver what
the file holds, in the order of the NUMBERs. A line that a killed process has torn is left out; a damaged one is set
aside.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from bso.domain.commands import Command, FinishTrial, ReportEpoch, Request

logger = logging.getLogger("bso")

_FORMAT = 1
_LETTER, _DELIVERED, _IDENTIFIED = "letter", "delivered", "identified"
_SET_ASIDE = "set-aside.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an optimizer is, and the login with which a process speaks to it."""

    address: str
    login: str

    @property
    def folder(self) -> str:
        """A name for it: the same for every process."""
        return hashlib.sha256(f"{self.address} {self.login}".encode()).hexdigest()[:16]


def place_of(url: str) -> Place:
    """The place of an optimizer's URL, without the password."""
    if url.startswith("sqlite"):
        return Place(address=url, login="")
    parts = urlsplit(url)
    host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    return Place(address=f"{parts.scheme}://{host}{parts.path}", login=parts.username or "guest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A command that was kept: ``training`` is the key of the training that sent it. A trial that the optimizer had not
    registered by then has number 0 and no id in it.
    """

    training: str
    request: Request
    kept_at: str = ""


Identity = tuple[int, str]
"""The number of a trial and its id, as its reports carry them."""


def addressed(command: Command, identity: Identity | None) -> Command | None:
    """A command with the identity of its trial, if it is one of a trial; None: that identity is not known."""
    if not isinstance(command, ReportEpoch | FinishTrial) or command.trial_id:
        return command
    return None if identity is None else replace(command, trial_number=identity[0], trial_id=identity[1])


class Journal:
    """What this process keeps for one job at one place. The file is there as long as there is something in it."""

    def __init__(self, state_dir: Path, place: Place, job_id: str) -> None:
        self.folder: Path = folder_of(state_dir, place, job_id)
        self._place = place
        self._file: _File | None = None
        self._identified: set[str] = set()  # trainings whose identity stands in the file

    def keep(self, kept: Kept) -> None:
        """Write a command down, to disk. Raises OSError, and leaves what was kept before as it was."""
        if self._file is None:
            self._file = _File.new(self.folder, self._place)
            self._identified.clear()
        self._file.append(_letter(kept))
        self._file.open_ids.add(kept.request.command_id)

    def identified(self, training: str, trial_number: int, trial_id: str) -> None:
        """Note what a training that was registered late is called. Raises OSError."""
        if self._file is not None and training not in self._identified:
            self._file.append(_identity(training, trial_number, trial_id))
            self._identified.add(training)

    def set_aside(self, kept: Kept, reason: str) -> None:
        """Put a command where people find it, with the reason, and deliver it no more. Raises OSError."""
        _set_aside(self.folder, _letter(kept) | {"reason": reason})
        self.delivered(kept.request.command_id)

    def delivered(self, command_id: str) -> None:
        """Note that a command need not be delivered any more. Raises OSError."""
        if self._file is not None:
            self._file.delivered(command_id)
            if not self._file.open_ids:
                self._file.delete()
                self.close()

    def close(self) -> None:
        """Leave what is still in it to others."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


@dataclass(slots=True, kw_only=True)
class LeftBehind:
    """The file of a process that has ended: what is still to be delivered, and the trials that are known by now."""

    file: _File
    letters: Sequence[Kept]
    identities: dict[str, Identity]

    def identified(self, training: str, trial_number: int, trial_id: str) -> None:
        """Note what a training is called."""
        self.identities[training] = (trial_number, trial_id)
        self.file.append(_identity(training, trial_number, trial_id))

    def delivered(self, kept: Kept) -> None:
        """Note that a command is delivered."""
        self.file.delivered(kept.request.command_id)

    def set_aside(self, kept: Kept, reason: str) -> None:
        """Put a command where people find it, with the reason, and deliver it no more."""
        _set_aside(self.file.path.parent, _letter(kept) | {"reason": reason})
        self.delivered(kept)


def take_over(folder: Path) -> Iterator[LeftBehind]:
    """The files of ended processes, oldest first, each held as long as it is looked at."""
    for path in _files(folder):
        lock = FileLock(_lock_of(path))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue  # its process lives
        file = _File(path, lock)
        try:
            if path.exists() and _is_of_this_format(path):  # another process may have delivered it just now
                letters, identities = _read(path)
                file.open_ids = {kept.request.command_id for kept in letters}
                yield LeftBehind(file=file, letters=letters, identities=identities)
                if not file.open_ids:
                    _set_aside_damaged(path)
                    file.delete()
        finally:
            file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the journal holds of a job at a place; ``is_held``: a living process keeps some of it."""

    place: Place
    job_id: str
    letters: Sequence[Kept]
    set_aside: Sequence[Mapping[str, Any]]
    is_held: bool
    folder: Path


def contents(state_dir: Path) -> Sequence[Contents]:
    """Everything that the journal of a state directory holds."""
    found: list[Contents] = []
    for place_file in sorted((state_dir / "journal").glob("*/place.json")):
        place = Place(**json.loads(place_file.read_text(encoding="utf-8")))
        for folder in sorted(path for path in place_file.parent.iterdir() if path.is_dir()):
            letters = [kept for path in _files(folder) for kept in _read(path)[0]]
            aside = list(_records(folder / _SET_ASIDE))
            if letters or aside:
                held = any(_is_held(path) for path in _files(folder))
                found.append(
                    Contents(
                        place=place,
                        job_id=folder.name,
                        letters=letters,
                        set_aside=aside,
                        is_held=held,
                        folder=folder,
                    )
                )
    return found


def drop(folder: Path) -> int:
    """Delete what ended processes have kept in a folder, and what was set aside; the number of commands."""
    dropped = len(list(_records(folder / _SET_ASIDE)))
    (folder / _SET_ASIDE).unlink(missing_ok=True)
    for left in take_over(folder):
        dropped += len(left.letters)
        left.file.open_ids.clear()  # so that it is deleted
    return dropped


def folder_of(state_dir: Path, place: Place, job_id: str) -> Path:
    """Where the journal of a job at a place is."""
    return state_dir / "journal" / place.folder / job_id


class _File:
    """One open file of the journal, and its lock."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path = path
        self.open_ids: set[str] = set()
        self._lock = lock
        self._end: int | None = None  # of the last whole line

    @classmethod
    def new(cls, folder: Path, place: Place) -> _File:
        """A file of this process' own, after all that are there. Raises OSError."""
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
        described = folder.parent / "place.json"
        if not described.exists():
            described.write_text(json.dumps({"address": place.address, "login": place.login}), encoding="utf-8")
        with FileLock(folder / "number.lock"):
            numbers = [int(path.stem) for path in _files(folder)]
            path = folder / f"{max(numbers, default=0) + 1:08d}.jsonl"
            lock = FileLock(_lock_of(path))
            lock.acquire(timeout=0)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            _sync_folder(folder)
        return cls(path, lock)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record, to disk. Raises OSError; then nothing is added."""
        line = _line(record)
        if self._end is None:
            self._end = self.path.read_bytes().rfind(b"\n") + 1
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, self._end)  # what a write without space has left
            if os.pwrite(descriptor, line, self._end) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(descriptor)
            self._end += len(line)
        finally:
            os.close(descriptor)

    def delivered(self, command_id: str) -> None:
        """Note that a command is delivered."""
        if command_id in self.open_ids:
            self.append({"kind": _DELIVERED, "command_id": command_id})
            self.open_ids.discard(command_id)

    def delete(self) -> None:
        """Delete it: there is nothing left in it."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of it."""
        if not self.path.exists():
            _lock_of(self.path).unlink(missing_ok=True)
        self._lock.release()


def _files(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.glob("*.jsonl") if path.stem.isdigit())


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")


def _is_held(path: Path) -> bool:
    try:
        with FileLock(_lock_of(path), timeout=0):
            return False
    except Timeout:
        return True


def _letter(kept: Kept) -> dict[str, Any]:
    from bso.schema.codec import encode_command  # pydantic takes its time, and most processes keep nothing

    message = json.loads(encode_command(kept.request))
    return {"kind": _LETTER, "format": _FORMAT, "training": kept.training, "kept_at": _now(), "message": message}


def _identity(training: str, trial_number: int, trial_id: str) -> dict[str, Any]:
    return {"kind": _IDENTIFIED, "training": training, "trial_number": trial_number, "trial_id": trial_id}


def _read(path: Path) -> tuple[Sequence[Kept], dict[str, Identity]]:
    """What is still to be delivered, and the trials whose numbers are known."""
    from bso.schema.codec import decode_command

    letters: dict[str, Kept] = {}
    identities: dict[str, Identity] = {}
    for record in _records(path):
        if record["kind"] == _LETTER:
            request = decode_command(json.dumps(record["message"]).encode())
            letters[request.command_id] = Kept(training=record["training"], request=request, kept_at=record["kept_at"])
        elif record["kind"] == _DELIVERED:
            letters.pop(record["command_id"], None)
        elif record["kind"] == _IDENTIFIED:
            identities[record["training"]] = (record["trial_number"], record["trial_id"])
    return list(letters.values()), identities


def _is_of_this_format(path: Path) -> bool:
    formats = {record["format"] for record in _records(path) if record["kind"] == _LETTER}
    if formats <= {_FORMAT}:
        return True
    logger.warning(
        "%s holds commands of format %s, this release reads %s: it is left to the release that wrote it",
        *(path, ", ".join(map(str, sorted(formats))), _FORMAT),
        extra={"action": "journal_too_new"},
    )
    return False


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """The sound records of a file, in their order."""
    for line in _lines(path):
        if _is_sound(line):
            yield json.loads(line.partition(b" ")[2])


def _lines(path: Path) -> Sequence[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]  # after the last one there is nothing, or a torn one
    except FileNotFoundError:
        return []


def _is_sound(line: bytes) -> bool:
    checksum, _, body = line.partition(b" ")
    return checksum == _checksum(body)


def _set_aside_damaged(path: Path) -> None:
    for number, line in enumerate(_lines(path), start=1):
        if not _is_sound(line):
            reason = f"line {number} of {path.name} is damaged"
            logger.warning("%s: it is set aside", reason, extra={"action": "journal_damaged"})
            text = line.decode("utf-8", "backslashreplace")
            _set_aside(path.parent, {"kind": "damaged", "text": text, "reason": reason})


def _set_aside(folder: Path, record: Mapping[str, Any]) -> None:
    with (folder / _SET_ASIDE).open("ab") as file:
        file.write(_line({**record, "set_aside_at": _now()}))
        file.flush()
        os.fsync(file.fileno())


def _line(record: Mapping[str, Any]) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    return _checksum(body) + b" " + body + b"\n"


def _checksum(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
