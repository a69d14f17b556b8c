"""Commands that could not be delivered, kept on disk: for this process to deliver, for the next one, or by hand.

One file for each process, by address, login and job::

    STATE_DIR/journal/DESTINATION/JOB/NUMBER.jsonl     one record a line, each with its checksum, appended and fsynced
    STATE_DIR/journal/DESTINATION/JOB/set-aside.jsonl  commands that the optimizer has refused, with the reason
    STATE_DIR/journal/DESTINATION/destination.json     the address, without its password, and the login

A living process holds the lock of its file, which the kernel lifts however the process ends. Others then deliver what
the file holds, in the order of the NUMBERs. A line that a killed process has torn is left out; a damaged one is set
aside.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from bso.domain.commands import Request
from bso_client.delivery.journal_file import IDENTIFIED, LETTER, JournalFile, set_aside, timestamp

_PORTS = (None, 5672, 5671)  # which a broker usually has, without TLS and with it
FORMAT = 1
"""Of the records of commands: a release reads its own, and leaves others alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where an optimizer is, and the login with which a process speaks to it."""

    address: str
    login: str

    @property
    def folder(self) -> str:
        """A name for it: the same for every process."""
        return hashlib.sha256(f"{self.address} {self.login}".encode()).hexdigest()[:16]


def destination_of(url: str) -> Destination:
    """The destination of an optimizer's URL, without the password: the same for every way to write it.

    A broker is the same with TLS and without, at its usual ports: what was kept before that changed is delivered.
    """
    if url.startswith("sqlite"):
        path = Path(url.partition(":///")[2]).expanduser().absolute()
        return Destination(address=f"sqlite:///{path}", login="")
    parts = urlsplit(url)
    if url.startswith("http"):
        port = f":{parts.port}" if parts.port else ""
        address = f"{parts.scheme}://{parts.hostname}{port}{parts.path.rstrip('/')}"
        return Destination(address=address, login=unquote(parts.username or ""))
    port = "" if parts.port in _PORTS else f":{parts.port}"
    virtual_host = quote(unquote(parts.path[1:]) or "/", safe="")
    address = f"amqp://{parts.hostname}{port}/{virtual_host}"
    return Destination(address=address, login=unquote(parts.username or "guest"))


def unnamed_destination() -> Destination:
    """Where a transport leads whose address nobody has named: no other optimizer's, so that nothing is sent astray."""
    return Destination(address="transport= without url=", login=uuid.uuid4().hex)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A command that was kept: ``training`` is the key of the training that sent it. A trial that the optimizer had not
    registered by then has number 0 and no id in it.
    """

    training: str
    request: Request
    kept_at: str = ""


class Journal:
    """What this process keeps for one job at one destination. The file is there as long as there is something in it."""

    def __init__(self, state_dir: Path, destination: Destination, job_id: str) -> None:
        self.folder: Path = folder_of(state_dir, destination, job_id)
        self.destination = destination
        self._file: JournalFile | None = None
        self._identified: set[str] = set()  # trainings whose identity stands in the file

    def keep(self, kept: Kept) -> None:
        """Write a command down, to disk. Raises OSError, and leaves what was kept before as it was."""
        if self._file is not None and not self._file.path.exists():  # somebody has deleted it
            self.close()
        if self._file is None:
            self._file = JournalFile.new(self.folder, about=asdict(self.destination))
            self._identified.clear()
        self._file.append(letter_record(kept))
        self._file.open_ids.add(kept.request.command_id)

    def identified(self, training: str, trial_number: int, trial_id: str) -> None:
        """Note what a training that was registered late is called. Raises OSError."""
        if self._file is not None and training not in self._identified:
            self._file.append(identity_record(training, trial_number, trial_id))
            self._identified.add(training)

    def set_aside(self, kept: Kept, reason: str) -> None:
        """Put a command where people find it, with the reason, and deliver it no more. Raises OSError."""
        set_aside(self.folder, letter_record(kept) | {"reason": reason})
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


def folder_of(state_dir: Path, destination: Destination, job_id: str) -> Path:
    """Where the journal of a job at a destination is."""
    return state_dir / "journal" / destination.folder / job_id


def letter_record(kept: Kept) -> dict[str, Any]:
    """The record of a command."""
    from bso.schema.codec import encode_command  # pydantic takes its time, and most processes keep nothing

    message = json.loads(encode_command(kept.request))
    return {"kind": LETTER, "format": FORMAT, "training": kept.training, "kept_at": timestamp(), "message": message}


def identity_record(training: str, trial_number: int, trial_id: str) -> dict[str, Any]:
    """The record of what a training that was registered late is called."""
    return {"kind": IDENTIFIED, "training": training, "trial_number": trial_number, "trial_id": trial_id}
