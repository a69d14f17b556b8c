"""What ended processes have left in the journal, to be looked at, delivered or dropped."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bso.domain.errors import Rejected
from bso.private_files import FILE_MODE
from bso.schema.codec import decode_command
from bso_client.delivery.journal import FORMAT, Destination, Kept, identity_record, letter_record
from bso_client.delivery.journal_file import (
    DELIVERED,
    IDENTIFIED,
    LETTER,
    SET_ASIDE,
    JournalFile,
    files_in,
    is_sound,
    lines,
    lock_of,
    record_of,
    records,
    set_aside,
)
from bso_client.training.state import Identity

logger = logging.getLogger("bso")


@dataclass(slots=True, kw_only=True)
class LeftBehind:
    """The file of a process that has ended: what is still to be delivered, and the trials that are known by now."""

    file: JournalFile
    letters: Sequence[Kept]
    identities: dict[str, Identity]

    def identified(self, training: str, trial_number: int, trial_id: str) -> None:
        """Note what a training is called."""
        self.identities[training] = (trial_number, trial_id)
        self.file.append(identity_record(training, trial_number, trial_id))

    def delivered(self, kept: Kept) -> None:
        """Note that a command is delivered."""
        self.file.delivered(kept.request.command_id)

    def set_aside(self, kept: Kept, reason: str) -> None:
        """Put a command where people find it, with the reason, and deliver it no more."""
        set_aside(self.file.path.parent, letter_record(kept) | {"reason": reason})
        self.delivered(kept)


def take_over(folder: Path, *, on_unreadable: Callable[[], None] = lambda: None) -> Iterator[LeftBehind]:
    """The files of ended processes, oldest first, each held as long as it is looked at.

    ``on_unreadable`` is called for each line that is set aside as it cannot be read, once all others are delivered.
    """
    for path in files_in(folder):
        lock = FileLock(lock_of(path), mode=FILE_MODE)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue  # its process lives
        file = JournalFile(path, lock)
        try:
            if path.exists() and _is_of_this_format(path):  # another process may have delivered it just now
                letters, identities = _read(path)
                file.open_ids = {kept.request.command_id for kept in letters}
                yield LeftBehind(file=file, letters=letters, identities=identities)
                if not file.open_ids:
                    _set_aside_unreadable(path, on_unreadable)
                    file.delete()
        finally:
            file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContents:
    """What the journal holds of a job at a destination; ``is_held``: a living process keeps some of it."""

    destination: Destination
    job_id: str
    letters: Sequence[Kept]
    set_aside: Sequence[Mapping[str, Any]]
    is_held: bool
    folder: Path


def contents(state_dir: Path) -> Sequence[JournalContents]:
    """Everything that the journal of a state directory holds. Where an address cannot be read, an error says so."""
    found: list[JournalContents] = []
    for description in sorted((state_dir / "journal").glob("*/destination.json")):
        destination = _destination(description)
        if destination is None:
            continue
        for folder in sorted(path for path in description.parent.iterdir() if path.is_dir()):
            files, aside = files_in(folder), list(records(folder / SET_ASIDE))
            letters = [kept for path in files for kept in _read(path)[0]]
            if any(map(lines, files)) or aside:  # a full disk may leave an empty one
                held = any(_is_held(path) for path in files)
                found.append(
                    JournalContents(
                        destination=destination,
                        job_id=folder.name,
                        letters=letters,
                        set_aside=aside,
                        is_held=held,
                        folder=folder,
                    )
                )
    return found


def _destination(description: Path) -> Destination | None:
    try:
        return Destination(**json.loads(description.read_bytes()))
    except (ValueError, TypeError) as error:
        logger.error(
            "%s is damaged (%r): what is kept beside it is not shown; the next trainings of its jobs deliver it",
            *(description, error),
            extra={"action": "journal_damaged"},
        )
        return None


def drop(folder: Path) -> int:
    """Delete what ended processes have kept in a folder, and what was set aside; the number of commands."""
    dropped = 0
    for left in take_over(folder):
        dropped += len(left.letters)
        left.file.open_ids.clear()  # so that it is deleted
    dropped += len(list(records(folder / SET_ASIDE)))  # with what could not be read
    (folder / SET_ASIDE).unlink(missing_ok=True)
    return dropped


def _is_held(path: Path) -> bool:
    try:
        with FileLock(lock_of(path), mode=FILE_MODE, timeout=0):
            return False
    except Timeout:
        return True


def _read(path: Path) -> tuple[Sequence[Kept], dict[str, Identity]]:
    """What is still to be delivered, and the trials whose numbers are known."""
    letters: dict[str, Kept] = {}
    identities: dict[str, Identity] = {}
    for record in records(path):
        if record["kind"] == LETTER:
            with suppress(Rejected, KeyError):  # it is left, or set aside when the others are delivered
                kept = _decoded(record)
                letters[kept.request.command_id] = kept
        elif record["kind"] == DELIVERED:
            letters.pop(record["command_id"], None)
        elif record["kind"] == IDENTIFIED:
            identities[record["training"]] = (record["trial_number"], record["trial_id"])
    return list(letters.values()), identities


def _decoded(record: Mapping[str, Any]) -> Kept:
    """The command of a record. Raises Rejected where this release cannot read it."""
    request = decode_command(json.dumps(record["message"]).encode())
    return Kept(training=record["training"], request=request, kept_at=record["kept_at"])


def _is_of_this_format(path: Path) -> bool:
    formats = {record["format"] for record in records(path) if record["kind"] == LETTER}
    if formats <= {FORMAT}:
        return True
    logger.warning(
        "%s holds commands of format %s, this release reads %s: it is left to the release that wrote it",
        *(path, ", ".join(map(str, sorted(formats))), FORMAT),
        extra={"action": "journal_too_new"},
    )
    return False


def _set_aside_unreadable(path: Path, on_unreadable: Callable[[], None]) -> None:
    for number, line in enumerate(lines(path), start=1):
        fault = _fault(line)
        if fault is not None:
            reason = f"line {number} of {path.name} {fault}"
            logger.warning("%s: it is set aside", reason, extra={"action": "journal_damaged"})
            text = line.decode("utf-8", "backslashreplace")
            set_aside(path.parent, {"kind": "damaged", "text": text, "reason": reason})
            on_unreadable()


def _fault(line: bytes) -> str | None:
    if not is_sound(line):
        return "is damaged"
    record = record_of(line)
    try:
        if record["kind"] == LETTER:
            _decoded(record)
    except (Rejected, KeyError) as error:
        return f"cannot be read by this release ({error})"
    return None
