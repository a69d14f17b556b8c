"""``bso replay publish``: recorded events again, for subscribers of replays."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bso.domain.errors import BsoError
from bso_cli.moments import EXPECTED, moment_from
from bso_cli.options import BrokerOption, DatabaseOption, JsonOption, TypesOption, known_types, operators_broker
from bso_cli.progress import counting
from bso_cli.refusals import CommandRefused
from bso_cli.replaying.sources import FromOption, JobsArgument, log_of
from bso_cli.terminal import counted, print_answer, print_notice

if TYPE_CHECKING:
    from bso.domain.errors import Retryable
    from bso.replay.publication import History, Wanted
    from bso.service.records import StoredEvent

_ONE_TRY_S = 30.0
_PATIENCE_S = 300.0


def publish(
    jobs: JobsArgument = None,
    types: TypesOption = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"Only events recorded at or after this time: {EXPECTED}.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only events recorded before this time; in the same forms.")
    ] = None,
    after: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="EVENT_ID",
            help="Only events after this one, of the first JOB where jobs are named; a publishing that was broken off "
            "names it. With --from: the number of different events before.",
            show_default=False,
        ),
    ] = 0,
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="At most so many events a second. [default: no limit]")
    ] = None,
    source: FromOption = None,
    url: BrokerOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish recorded events again, on the topic exchange bso.replay.

    Routing keys and bodies are those of live events. The exchange is another one, because trainings and dashboards
    take every event of bso.events for a new one. Bind a queue to bso.replay before: without one, events are lost.
    Events may arrive twice; (job_id, log_epoch, seq) identifies them.
    """
    from bso.replay.publication import Wanted

    now = datetime.now(UTC)
    wanted = Wanted(
        jobs=jobs or (),
        types=known_types(types),
        since=None if since is None else moment_from(since, now=now),
        before=None if before is None else moment_from(before, now=now),
        after=after,
    )
    broker = operators_broker(url, what="replays")
    others = as_typed(
        {"--rate": rate, "--from": source, "--url": url, "--database-url": database_url, "--json": as_json}
    )
    sent = asyncio.run(_publish(wanted, source, database_url, broker, rate, others))
    print_answer({"published": sent}, f"{counted(sent, 'event')} published on bso.replay", as_json=as_json)


def as_typed(options: Mapping[str, object]) -> list[str]:
    """Options and their values as words of a command line, without the passwords in addresses."""
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words += [name, re.sub(r"(?<=//)([^:/@]*):.*@", r"\1:***@", str(value))]
    return words


def command_for(wanted: Wanted, others: Sequence[str]) -> str:
    """The command that publishes what is wanted, ``others`` being its further options.

    Ages have become points in time: an age would mean another one later.
    """
    types = [word for name in wanted.types for word in ("--type", name)]
    since = None if wanted.since is None else wanted.since.isoformat()
    before = None if wanted.before is None else wanted.before.isoformat()
    narrowed = as_typed({"--since": since, "--before": before, "--after": wanted.after or None})
    return shlex.join(["bso", "replay", "publish", *wanted.jobs, *types, *narrowed, *others])


async def _publish(
    wanted: Wanted,
    source: Path | None,
    database_url: str | None,
    address: str,
    rate_per_s: float | None,
    others: Sequence[str],
) -> int:
    from bso.replay.publication import Gone, patient
    from bso.replay.publication import publish as publish_wanted
    from bso_broker.messages import event_message
    from bso_broker.rabbit import RabbitBroker

    gone = Gone(wanted)
    async with log_of(source, database_url, command="bso replay publish") as log, RabbitBroker(address) as broker:
        await _require_recorded(log, wanted.jobs)
        await broker.declare()
        publisher = broker.replay_publisher()

        async def send(events: Sequence[StoredEvent]) -> None:
            await publisher.publish_batch([event_message(one.recorded) for one in events], timeout_s=_ONE_TRY_S)

        with counting("publishing", "events") as counter:
            send_patiently = patient(send, patience_s=_PATIENCE_S, on_failure=_say_that_it_waits)

            async def send_and_count(events: Sequence[StoredEvent]) -> None:
                await send_patiently(events)
                gone.count(events)

            try:
                return await publish_wanted(log, wanted, send_and_count, rate_per_s=rate_per_s, progress=counter)
            except BsoError as error:
                said = f"stopped after {counted(gone.events, 'event')}: {error}"
                rest = gone.rest()
                raise CommandRefused(
                    said if rest is None else f"{said}\nTo go on: {command_for(rest, others)}"
                ) from error


async def _require_recorded(log: History, jobs: Collection[str]) -> None:
    unknown = [job_id for job_id in dict.fromkeys(jobs) if not await log.history(job_id, limit=1)]
    if unknown:
        raise CommandRefused(f"nothing is recorded of {', '.join(unknown)}")


def _say_that_it_waits(error: Retryable) -> None:
    print_notice(Text(f"{error}; trying again for up to {_PATIENCE_S:g} s"))
