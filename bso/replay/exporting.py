"""A job's log as lines, page by page."""

from __future__ import annotations

from collections.abc import Callable

from bso.replay.event_lines import event_line
from bso.replay.folding import LogPages, pages_of


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
