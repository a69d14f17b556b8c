"""The log of a job as server-sent events: first what is there, then each event as it comes, in order, each once.

The id of an event is ``<log epoch>.<seq>.<event_id>``: any gateway goes on after it (Last-Event-ID).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from pydantic_core import from_json, to_json

from bso.service.queries import EventsPage, Page
from bso_gateway.http import HttpError

LOOK_AGAIN_S = 0.7
_ALIVE_EVERY = 15  # looks without an event, after which a comment shows proxies that the stream lives


def position_of(last_event_id: str | None, *, otherwise: int) -> int:
    """The event_id that a client has seen last. Raises HttpError."""
    if not last_event_id:
        return otherwise
    number = last_event_id.rpartition(".")[2]
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        words = f"Last-Event-ID must be the id of an event, got {last_event_id[:60]!r}"
        raise HttpError(400, words, kind="invalid_event_id")
    return int(number)


async def followed(
    look: Callable[[int], Awaitable[Page]], first: EventsPage, seen: int, *, until: asyncio.Event
) -> AsyncIterator[bytes]:
    """The events after ``seen``, until somebody ends it; an optimizer that is away is waited for."""
    page: Page | None = first
    quiet = 0
    while not until.is_set():
        if isinstance(page, EventsPage) and page.events:
            quiet = 0
            for each in page.events:
                yield _event(each.event_id, each.message)
            seen = page.events[-1].event_id
        else:
            quiet += 1
            if quiet % _ALIVE_EVERY == 1:
                yield b": alive\n\n"
            await _pause(until)
        try:
            page = await look(seen)
        except HttpError as error:
            if error.status < 500 and error.status != 429:
                return
            page = None


def _event(event_id: int, message: str) -> bytes:
    body = from_json(message)
    name = f"{body['log_epoch']}.{body['seq']}.{event_id}"
    return f"id: {name}\nevent: {body['type']}\ndata: ".encode() + to_json({"event_id": event_id, **body}) + b"\n\n"


async def _pause(until: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(LOOK_AGAIN_S):
            await until.wait()
    except TimeoutError:
        return
