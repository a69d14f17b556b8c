"""``bso events``: what has happened, and what is happening."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer
from rich.markup import escape

from bso.domain.quantities import counted, moment
from bso_cli.moments import EXPECTED, moment_from
from bso_cli.options import DatabaseOption, JsonOption, TypesOption, UrlOption, YesOption, here, known_types
from bso_cli.refusals import FAILURE, CommandGroup, CommandRefused, RefusedForNow
from bso_cli.settings import Places
from bso_cli.terminal import HANG, confirm, print_answer, print_json, print_notice, print_result, styled

if TYPE_CHECKING:
    from bso.domain.log import RecordedEvent
    from bso.service.records import StoredEvent
    from bso_client.transports.http import HttpCaller

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, help="Read the history of jobs, or follow it live.")

LOOK_S = 0.5
SILENCE_S = 25.0
"""How long a gateway's stream may be silent: the gateway itself says that it lives every ten seconds."""
FIRST_LINE_S = 10.0
ASK_S = 1.0
HELD_BACK_S, AWAY_S = 300.0, 10.0
"""After how long a stream is tried again that something holds back, or that has broken off."""
ROOM_BELOW = 1000
"""How far below the last event_id a live tail looks again: transactions commit in another order than they number."""
MOST_SEEN = 10_000


class HeldBack(Exception):
    """Something on the way to a gateway does not let a stream through."""


OptionalJob = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only this job.", show_default=False)]


@app.command()
def history(
    job_id: OptionalJob = None,
    types: TypesOption = None,
    after: Annotated[int, typer.Option(metavar="EVENT_ID", help="Only events after this one.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="The most events to print.")] = 1000,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print events in the order in which they were recorded; with --json one object a line."""
    from bso.service.errors import EventUnreadable
    from bso_cli.access import seeing, whole_history

    places = here(url=url, database_url=database_url)
    wanted = known_types(types)

    async def read() -> None:
        shown = 0
        async with seeing(places) as reads, aclosing(whole_history(reads, job_id, after=after)) as events:
            try:
                async for stored in events:
                    if _is_wanted(stored.recorded, wanted):
                        _show(stored.recorded, event_id=stored.event_id, as_json=as_json)
                        shown += 1
                    if shown >= limit:
                        print_notice(styled(f"[dim]more follow: --after {stored.event_id}[/]"))
                        return
            except EventUnreadable as error:
                raise CommandRefused(f"{error}. To go on behind it: --after {error.event_id}") from error
        if not shown:
            print_notice("no events" + (f" of job {job_id}" if job_id else ""))

    asyncio.run(read())


@app.command()
def tail(
    job_id: OptionalJob = None,
    types: TypesOption = None,
    count: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="End after so many events.", show_default=False)
    ] = None,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow events as they happen, until Ctrl-C: through the broker or the gateway (then of one job) that BSO_URL
    names, else in the database.

    Each event is shown once, as it arrives; the order of a job's events is that of (log_epoch, seq).
    """
    places = here(url=url, database_url=database_url)
    wanted = known_types(types)

    async def follow() -> None:
        seen = 0
        async for recorded in _live(places, job_id):
            if not _is_wanted(recorded, wanted):
                continue
            _show(recorded, event_id=None, as_json=as_json)
            seen += 1
            if seen == count:
                return

    asyncio.run(follow())


@app.command()
def prune(
    before: Annotated[str, typer.Option(metavar="WHEN", help=f"Delete what is older: {EXPECTED}.", show_default=False)],
    export: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Append the events to this file first, as JSON lines.", show_default=False),
    ],
    yes: YesOption = False,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export old events and delete them. What the jobs have learnt stays; replay starts from a snapshot."""
    from bso.service.retention import prune_events
    from bso_cli.access import in_store
    from bso_cli.exports import archive

    database = here(database_url=database_url).database("bso events prune")
    limit = moment_from(before, option="--before", now=datetime.now(UTC))
    if not yes:
        confirm(f"Export and delete the events before {moment(limit)} UTC?")
    with archive(export) as keep:
        pruned = in_store(database, lambda store: prune_events(store, before=limit, export=keep))
    of = f" of {counted(pruned.jobs, 'job')}" if pruned.events else ""
    print_answer(pruned, f"{counted(pruned.events, 'event')}{of} deleted, exported to {export}", as_json=as_json)
    if pruned.unreadable:
        for job_id, why in pruned.unreadable.items():
            print_notice(styled(f"[red]✗[/] job {escape(job_id)} is left as it is: {escape(why)}"))
        raise typer.Exit(FAILURE)


def _live(places: Places, job_id: str | None) -> AsyncIterator[RecordedEvent]:
    if places.url is not None and places.url.startswith("http"):
        if job_id is None:
            raise CommandRefused("through a gateway, events are followed job by job: `bso events tail JOB`")
        return _from_gateway(places.url, job_id)
    if places.url is not None and not places.is_embedded:
        return _from_broker(places.url, job_id)
    return _from_database(places.database("bso events tail"), job_id)


async def _from_broker(url: str, job_id: str | None) -> AsyncIterator[RecordedEvent]:
    from bso.schema.codec import decode_event
    from bso_broker.addresses import event_pattern
    from bso_broker.rabbit import RabbitBroker

    async with RabbitBroker(url) as broker:
        seen: dict[tuple[str, int, int], None] = {}  # the broker delivers at least once
        subscriber = broker.event_subscriber(event_pattern(job_id=job_id))
        await subscriber.start()
        announcement = asyncio.create_task(_announce_when(subscriber.connected))
        try:
            async for event in subscriber:
                recorded = decode_event(event.body)
                place = (recorded.job_id, recorded.log_epoch, recorded.seq)
                if place not in seen:
                    yield recorded
                seen[place] = None
                if len(seen) > MOST_SEEN:
                    del seen[next(iter(seen))]
        finally:
            announcement.cancel()
            await subscriber.close()


async def _from_gateway(url: str, job_id: str) -> AsyncIterator[RecordedEvent]:
    """The events of a job as they come; where something on the way holds the stream back, asked for again and again."""
    from bso_cli.access import whole_history
    from bso_cli.broker_reads import BrokerReads
    from bso_client.errors import Unreachable
    from bso_client.transports.http import HttpCaller

    gateway = HttpCaller(url)
    await gateway.start()
    try:
        reads = BrokerReads(gateway)
        seen = await reads.last_event_id(job_id)
        _announce()
        clock = asyncio.get_running_loop().time
        stream_again_s, is_said = clock(), False
        while True:
            is_streamed = clock() >= stream_again_s
            news = _streamed(gateway, job_id, after=seen) if is_streamed else whole_history(reads, job_id, after=seen)
            try:
                async for stored in news:
                    seen, is_said = stored.event_id, False
                    yield stored.recorded
            except (HeldBack, Unreachable, RefusedForNow) as error:
                if not is_said:
                    print_notice(f"{error}; asking every second")
                is_said = True
                if is_streamed:
                    stream_again_s = clock() + (HELD_BACK_S if isinstance(error, HeldBack) else AWAY_S)
            await asyncio.sleep(ASK_S)
    finally:
        await gateway.close()


async def _streamed(gateway: HttpCaller, job_id: str, *, after: int) -> AsyncIterator[StoredEvent]:
    """The events of a job from a stream, until it breaks off. Raises HeldBack, Unreachable."""
    from bso.schema.codec import decode_event
    from bso.service.records import StoredEvent

    lines = gateway.stream(f"jobs/{quote(job_id)}/events?after={after}", silence_s=SILENCE_S)
    try:
        async with asyncio.timeout(FIRST_LINE_S):
            await anext(lines)  # the head of the answer
            line = await anext(lines, None)  # at once: an event, or that there is none yet
    except TimeoutError:
        raise HeldBack("something between here and the gateway holds live events back") from None
    data = b""
    while line is not None:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ")
        elif not line.strip() and data:
            event_id = json.loads(data)["event_id"]
            yield StoredEvent(event_id=event_id, recorded=decode_event(data))
            data = b""
        line = await anext(lines, None)


async def _from_database(database: str, job_id: str | None) -> AsyncIterator[RecordedEvent]:
    from bso_cli.access import reading

    async with reading(database) as store:
        last = await store.last_event_id(job_id)
        seen = {stored.event_id for stored in await store.history(job_id, after=max(0, last - ROOM_BELOW))}
        _announce()
        while True:
            for stored in await store.history(job_id, after=max(0, last - ROOM_BELOW), limit=2 * ROOM_BELOW):
                if stored.event_id not in seen:
                    seen.add(stored.event_id)
                    last = max(last, stored.event_id)
                    yield stored.recorded
            seen = {event_id for event_id in seen if event_id > last - ROOM_BELOW}
            await asyncio.sleep(LOOK_S)


async def _announce_when(connected: asyncio.Event) -> None:
    await connected.wait()
    _announce()


def _announce() -> None:
    print_notice(styled("[dim]following what happens from now on; Ctrl-C ends[/]"))


def _show(recorded: RecordedEvent, *, event_id: int | None, as_json: bool) -> None:
    from bso.domain.sentences import sentence
    from bso_cli.exports import recorded_fields

    if as_json:
        place = {} if event_id is None else {"event_id": event_id}
        print_json(place | recorded_fields(recorded))
        return
    when, job = moment(recorded.recorded_at), escape(recorded.job_id)
    print_result(styled(f"[dim]{when}[/] {job} [dim]#{recorded.seq}[/] {escape(sentence(recorded.event))}"), hang=HANG)


def _is_wanted(recorded: RecordedEvent, wanted: Collection[str]) -> bool:
    from bso.schema.codec import wire_name

    return not wanted or wire_name(type(recorded.event)) in wanted
