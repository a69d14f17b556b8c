"""Logs as server-sent events: first what is there, then each event as it comes, each once, those of a job in order.

The id of an event says where to go on after it, at any gateway (Last-Event-ID): in the log of one job
``<log epoch>.<seq>.<event_id>``, in the logs of several jobs a cursor with the place in each.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json
from starlette.responses import ContentStream, Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from bso.service.queries import EventsPage, FollowJobs, ListEvents, Page, Query
from bso_gateway.http import HttpError

LOOK_AGAIN_S = 0.7
MOST_STREAMS, MOST_STREAMS_OF_ONE, _STREAM_LATER_S = 64, 16, 30.0
"""Streams that one gateway has open: each asks for news again and again."""
_LEAST_PAUSE_S, _PAUSE_OF_EACH_S = 0.2, 0.01
_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_ALIVE_EVERY_S = 10.0  # after so long without an event, a comment shows proxies that the stream lives
_MOST_DIGITS = 18


class Streams:
    """The streams that a gateway has open, of all users and of each."""

    def __init__(self) -> None:
        self._open: Counter[str | None] = Counter()

    def take_place(self, user: str | None) -> None:
        """Count a stream. Raises HttpError where too many are open, of all or of one user's."""
        own = 0 if user is None else self._open[user]
        if self._open.total() >= MOST_STREAMS or own >= MOST_STREAMS_OF_ONE:
            words = f"{self._open.total()} streams of events are open, {own} of this user; no more are allowed"
            raise HttpError(503, words, kind="too_many_streams", retry_after_s=_STREAM_LATER_S)
        self._open[user] += 1

    @property
    def page_pause_s(self) -> float:
        """How often a page may look whether its job has changed: the less often, the more streams are open."""
        return max(_LEAST_PAUSE_S, self._open.total() * _PAUSE_OF_EACH_S)

    def leave(self, user: str | None) -> None:
        """Count it no more."""
        self._open[user] -= 1

    def answer(self, stream: ContentStream, user: str | None) -> Response:
        """The answer of a stream that has its place, which it leaves when it is over."""
        return _Counted(
            stream, media_type="text/event-stream", headers=_STREAM_HEADERS, when_over=lambda: self.leave(user)
        )


class _Counted(StreamingResponse):
    """A stream that says when it is over, however it ends."""

    def __init__(self, stream: ContentStream, *, when_over: Callable[[], None], **options: Any) -> None:
        super().__init__(stream, **options)
        self._when_over = when_over

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._when_over()


class PlaceInLog:
    """The place in the log of one job, after the event that a client has seen last.

    ``seen``: the event_id of that event; 0: there is none. ``last_id``: the id of the last event that was passed here;
    empty before the first one.
    """

    def __init__(self, job_id: str, *, after: int, last_event_id: str | None) -> None:
        self.job_id: str | None = job_id
        self.last_id = ""
        self.seen = _event_id_of(last_event_id) if last_event_id else after

    @property
    def query(self) -> Query:
        """What asks for the events after it."""
        return ListEvents(after=self.seen)

    def move(self, event_id: int, message: Mapping[str, Any]) -> None:
        """Go on after an event."""
        self.seen = event_id
        self.last_id = f"{message['log_epoch']}.{message['seq']}.{event_id}"


class PlacesInLogs:
    """The same in the logs of several jobs, which the cursor names by a digest: ``<digest>.<event_id>.<event_id>...``.

    Raises HttpError for a cursor that is none, or one of other jobs.
    """

    job_id: str | None = None

    def __init__(self, job_ids: Collection[str], *, cursor: str | None) -> None:
        names = sorted(job_ids)
        self.last_id = ""
        self._digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
        self._seen = dict(zip(names, self._places(cursor) if cursor else [0] * len(names), strict=True))

    @property
    def query(self) -> Query:
        """What asks for the events after them."""
        return FollowJobs(after=dict(self._seen))

    def move(self, event_id: int, message: Mapping[str, Any]) -> None:
        """Go on after an event."""
        self._seen[message["job_id"]] = event_id
        self.last_id = ".".join([self._digest, *map(str, self._seen.values())])

    def _places(self, cursor: str) -> Sequence[int]:
        digest, *numbers = cursor.split(".")
        if digest != self._digest or not all(map(_is_event_id, numbers)):
            words = f"expected the id of an event of exactly these jobs, got {cursor[:60]!r}"
            raise HttpError(400, words, kind="invalid_event_id")
        return [int(number) for number in numbers]


Place = PlaceInLog | PlacesInLogs


def _event_id_of(text: str) -> int:
    number = text.rpartition(".")[2]
    if not _is_event_id(number):
        raise HttpError(400, f"Last-Event-ID must be the id of an event, got {text[:60]!r}", kind="invalid_event_id")
    return int(number)


def _is_event_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def passed(page: EventsPage, place: Place, *, types: Collection[str] = ()) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The events of a page, of these types if any are named, each with its id for clients; the place moves on."""
    for each in page.events:
        message = from_json(each.message)
        place.move(each.event_id, message)
        if not types or message["type"] in types:
            yield place.last_id, {"event_id": each.event_id, **message}


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
    clock = asyncio.get_running_loop().time
    silent_since_s = clock() - _ALIVE_EVERY_S  # the first line comes at once
    while not until.is_set():
        has_events = isinstance(page, EventsPage) and bool(page.events)
        for name, event in passed(page, place, types=types) if isinstance(page, EventsPage) else ():
            yield f"id: {name}\nevent: {event['type']}\ndata: ".encode() + to_json(event) + b"\n\n"
            silent_since_s = clock()
        if clock() - silent_since_s >= _ALIVE_EVERY_S:
            at = f"id: {place.last_id}\n" if place.last_id else ""  # clients pass what the filter left out, too
            yield f"{at}: alive\n\n".encode()
            silent_since_s = clock()
        if not has_events:
            await pause(until)
        try:
            page = await look()
        except HttpError as error:
            if error.status < 500 and error.status != 429:
                return
            page = None


async def pause(until: asyncio.Event, *, pause_s: float = LOOK_AGAIN_S) -> None:
    """Wait a moment before the next look, less where the gateway ends."""
    try:
        async with asyncio.timeout(pause_s):
            await until.wait()
    except TimeoutError:
        return
