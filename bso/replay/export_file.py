"""Files of recorded events: written from a log, and laid out in a log of their own, which checks and sorts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bso.domain.errors import Rejected
from bso.replay.event_lines import event_line, logged_event
from bso.replay.fold import LogPages, pages_of
from bso.schema.errors import MalformedMessage
from bso.service.errors import Unstorable
from bso.service.records import LoggedEvent
from bso.storage.job_logs import LogConflict

_LINES_AT_ONCE = 500


class BadExport(Rejected):
    """A line of an export file is no event, or contradicts another line; the message names the line."""


class Log(Protocol):
    """Where events are laid out."""

    async def append_log(self, events: Sequence[LoggedEvent]) -> int:
        """Append what the log lacks; returns how many. Raises LogConflict."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbered:
    line: int
    logged: LoggedEvent


async def export(
    log: LogPages, job_id: str, write: Callable[[bytes], object], *, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Write a job's log in the order of seq, one event a line; returns the number of events.

    ``progress`` is called with the number written since. The memory that it takes does not grow with the log.
    """
    count = 0
    async for page in pages_of(log, job_id):
        write(b"".join(event_line(logged) + b"\n" for logged in page))
        count += len(page)
        progress(len(page))
    return count


async def stage(
    lines: Iterable[bytes], log: Log, *, name: str, progress: Callable[[int], None] = lambda _: None
) -> int:
    """Lay the events of a file out in a log; returns their number, repeated lines not counted.

    Lines may come in any order and more than once. Raises BadExport, naming the line, for one that is no event or
    contradicts an earlier one; ``name`` is the file's. ``progress`` is called with the number of lines read since.
    """
    staged = 0
    for part in _in_parts(_read(lines, name)):
        staged += await _append(part, log, name)
        progress(len(part))
    return staged


async def _append(part: Sequence[_Numbered], log: Log, name: str) -> int:
    try:
        return await log.append_log([one.logged for one in part])
    except (LogConflict, Unstorable) as error:
        if len(part) == 1:
            raise BadExport(f"{name}, line {part[0].line}: {error}") from error
    return sum([await _append([one], log, name) for one in part])


def _read(lines: Iterable[bytes], name: str) -> Iterator[_Numbered]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _Numbered(line=number, logged=logged_event(line))
        except MalformedMessage as error:
            cut = "" if line.endswith(b"\n") else " (the line has no end: was the file cut off?)"
            raise BadExport(f"{name}, line {number}: {error}{cut}") from error


def _in_parts(events: Iterable[_Numbered]) -> Iterator[list[_Numbered]]:
    part: list[_Numbered] = []
    for one in events:
        part.append(one)
        if len(part) == _LINES_AT_ONCE:
            yield part
            part = []
    if part:
        yield part
