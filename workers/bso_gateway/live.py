"""Logs as server-sent events: first what is there, then each event as it comes, each once, those of a job in order.

The id of an event says where to go on after it, at any gateway (Last-Event-ID): in the log of one job
``<log epoch>.<seq>.<event_id>``, in several a cursor with the place in each log.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from pydantic_core import from_json, to_json

from bso.service.queries import EventsPage, FollowJobs, ListEvents, Page, Query
from bso_gateway.http import HttpError

LOOK_AGAIN_S = 0.7
_ALIVE_EVERY = 15  # looks without an event, after which a comment shows proxies that the stream lives
_MOST_DIGITS = 18
_PLACES = TypeAdapter(Mapping[str, Annotated[int, Field(ge=0, lt=10**_MOST_DIGITS, strict=True)]])


class PlaceInLog:
    """The place in the log of one job, after the event that a client has seen last."""

    def __init__(self, job_id: str, *, after: int, last_event_id: str | None) -> None:
        self.job_id: str | None = job_id
        self._seen = _event_id_of(last_event_id) if last_event_id else after

    @property
    def query(self) -> Query:
        """What asks for the events after it."""
        return ListEvents(after=self._seen)

    def move(self, event_id: int, message: Mapping[str, Any]) -> str:
        """Go on after an event; the id of that event for clients."""
        self._seen = event_id
        return f"{message['log_epoch']}.{message['seq']}.{event_id}"


class PlacesInLogs:
    """The same in the logs of several jobs. ``cursor`` holds all places."""

    job_id: str | None = None

    def __init__(self, job_ids: Sequence[str], *, cursor: str | None) -> None:
        known = _places_of(cursor) if cursor else {}
        self._seen = {job_id: known.get(job_id, 0) for job_id in job_ids}

    @property
    def query(self) -> Query:
        """What asks for the events after them."""
        return FollowJobs(after=dict(self._seen))

    @property
    def cursor(self) -> str:
        """All places, as clients keep them."""
        known = {job_id: seen for job_id, seen in self._seen.items() if seen}
        return urlsafe_b64encode(to_json(known)).decode().rstrip("=")

    def move(self, event_id: int, message: Mapping[str, Any]) -> str:
        """Go on after an event; the id of that event for clients."""
        self._seen[message["job_id"]] = event_id
        return self.cursor


Place = PlaceInLog | PlacesInLogs


def _event_id_of(text: str) -> int:
    number = text.rpartition(".")[2]
    if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
        raise HttpError(400, f"Last-Event-ID must be the id of an event, got {text[:60]!r}", kind="invalid_event_id")
    return int(number)


def _places_of(cursor: str) -> Mapping[str, int]:
    try:
        return _PLACES.validate_json(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError as error:  # no base64, or no such JSON
        words = f"expected a cursor, the id of an event of several jobs, got {cursor[:60]!r}"
        raise HttpError(400, words, kind="invalid_event_id") from error


def listed(page: EventsPage, place: Place, *, types: Collection[str] = ()) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """The events of a page, of these types if any are named, with their ids for clients; the place goes on after it."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for each in page.events:
        message = from_json(each.message)
        name = place.move(each.event_id, message)
        if not types or message["type"] in types:
            found.append((name, {"event_id": each.event_id, **message}))
    return found


async def followed(
    look: Callable[[], Awaitable[Page]],
    first: EventsPage,
    place: Place,
    *,
    types: Collection[str],
    until: asyncio.Event,
) -> AsyncIterator[bytes]:
    """The events after a place, until somebody ends it; an optimizer that is away is waited for."""
    page: Page | None = first
    quiet = 0
    while not until.is_set():
        shown: Sequence[tuple[str, Mapping[str, Any]]] = ()
        is_end = True
        if isinstance(page, EventsPage):
            is_end = not page.events
            shown = listed(page, place, types=types)
        for name, event in shown:
            yield f"id: {name}\nevent: {event['type']}\ndata: ".encode() + to_json(event) + b"\n\n"
        quiet = 0 if shown else quiet + 1
        if quiet % _ALIVE_EVERY == 1:
            yield b": alive\n\n"
        if is_end:
            await _pause(until)
        try:
            page = await look()
        except HttpError as error:
            if error.status < 500 and error.status != 429:
                return
            page = None


async def _pause(until: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(LOOK_AGAIN_S):
            await until.wait()
    except TimeoutError:
        return
