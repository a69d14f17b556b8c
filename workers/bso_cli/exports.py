"""Trials, events and power profiles for other programs: JSON lines, or comma-separated values."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from bso.credentials import Data, value_without_passwords, without_passwords
from bso.domain.log import RecordedEvent
from bso.schema.codec import dump, event_payload
from bso.service.flat_rows import Row, csv_value, hardware_fields, trial_fields
from bso.service.ports import JobReads
from bso.service.records import StoredEvent
from bso_cli.access import whole_history
from bso_cli.jobs_power import highest_first
from bso_cli.terminal import print_notice

_BLOCK = 65_536


async def exported(store: JobReads, job_id: str, *, what: str, form: str, output: Path | None) -> int:
    """Write a job's trials, events or profiles and return their number; no file is made where there is nothing."""
    rows = {"trials": trial_rows, "events": event_rows, "profiles": power_rows}[what](store, job_id)
    first = await anext(rows, None)
    if first is None:
        return 0
    opened = nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8", newline="")
    with naming(output), opened as stream:
        write = csv_writer(stream, first) if form == "csv" else json_writer(stream)
        write(first)
        count = 1
        async for row in rows:
            write(row)
            count += 1
    return count


@contextmanager
def archive(path: Path) -> Iterator[Callable[[Sequence[StoredEvent]], None]]:
    """What appends events to a file, as lines that are on the disk when it returns. Raises OSError naming the file.

    Two processes may do so at once. What one has left unfinished, killed or on a full disk, is cut off: it says so.
    """
    with path.open("ab", buffering=0) as stream:
        if path.is_file():
            _end_last_line(path, stream)

        def keep(events: Sequence[StoredEvent]) -> None:
            lines = io.StringIO()
            write = json_writer(lines)
            for stored in events:
                write(event_fields(stored))
            left = memoryview(lines.getvalue().encode())
            with naming(path):
                while left:  # one write, unless the disk is full
                    left = left[stream.write(left) or 0 :]
                os.fsync(stream.fileno())

        yield keep


@contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Let errors say which file they are about; None: the standard output."""
    try:
        yield
    except OSError as error:
        if error.filename is None and path is not None:
            error.filename = str(path)
        raise


def _end_last_line(path: Path, stream: IO[bytes]) -> None:
    """Cut off a line without an end; a whole one that lacks nothing else gets it."""
    with path.open("rb") as written:
        size = written.seek(0, os.SEEK_END)
        last, start = b"", size
        while start and b"\n" not in last:
            start = max(0, start - _BLOCK)
            written.seek(start)
            last = written.read(size - start)
    line = last.rpartition(b"\n")[2]
    if not line:
        return
    try:
        json.loads(line)
    except ValueError:
        os.truncate(path, size - len(line))
        print_notice(f"{path} ended within a line, which is cut off: what it was to hold is exported again")
    else:
        stream.write(b"\n")


async def trial_rows(store: JobReads, job_id: str) -> AsyncIterator[Row]:
    """One row per trial."""
    for trial in await store.trials(job_id):
        yield trial_fields(job_id, trial)


async def power_rows(store: JobReads, job_id: str) -> AsyncIterator[Row]:
    """One row per batch size, hardware kind and power limit."""
    for profile in await store.power_profiles(job_id):
        for measured in highest_first(profile):
            yield {
                "job_id": job_id,
                "batch_size": profile.batch_size,
                **json.loads(dump(measured)),
                **hardware_fields(profile.hardware),
            }


async def event_rows(store: JobReads, job_id: str | None) -> AsyncIterator[Row]:
    """One row per event, in order."""
    async for stored in whole_history(store, job_id):
        yield event_fields(stored)


def event_fields(stored: StoredEvent) -> dict[str, Any]:
    """An event as one flat row with its payload as an object."""
    return {"event_id": stored.event_id, **recorded_fields(stored.recorded)}


def recorded_fields(recorded: RecordedEvent) -> dict[str, Any]:
    """The same without the number that the database gave it."""
    event_type, payload = event_payload(recorded.event)
    return {
        "job_id": recorded.job_id,
        "seq": recorded.seq,
        "log_epoch": recorded.log_epoch,
        "recorded_at": recorded.recorded_at.isoformat(),
        "type": event_type,
        "command_id": recorded.command_id,
        "part": recorded.part,
        "payload": json.loads(payload),
    }


def json_writer(stream: IO[str]) -> Any:
    """A function that writes a row as one JSON object on a line, in ASCII."""
    return lambda row: print(json.dumps(row), file=stream)


def csv_writer(stream: IO[str], first: Row) -> Any:
    """A function that writes a row as comma-separated values (RFC 4180, lines end with LF), after a header.

    What is printed shows no password in a text; a file has every text as it is kept.
    """
    cell = _printed if stream is sys.stdout else csv_value
    writer = csv.DictWriter(_Lines(stream), fieldnames=list(first), lineterminator="\n")
    writer.writeheader()
    return lambda row: writer.writerow({name: cell(value) for name, value in row.items()})


class _Lines:
    """A stream for lines whose numbers and headings are no passwords, and whose texts hold none."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, line: str) -> int:
        return self._stream.write(Data(line))


def _printed(value: object) -> object:
    cell = csv_value(value)
    if isinstance(value, dict | list):
        return without_passwords(str(cell))
    return value_without_passwords(cell) if isinstance(cell, str) else cell
