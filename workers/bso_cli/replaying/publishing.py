"""``bso replay publish``: recorded events again, for subscribers of replays."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bso.domain.errors import BsoError
from bso_cli.moments import EXPECTED, moment_from
from bso_cli.options import (
    BrokerOption,
    DatabaseOption,
    JsonOption,
    TypesOption,
    known_types,
    operators_broker,
    with_options,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """Which events, from where, and to which broker."""

    types: TypesOption = None
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"Only events recorded at or after this time: {EXPECTED}.")
    ] = None
    before: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only events recorded before this time; in the same forms.")
    ] = None
    after: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="EVENT_ID",
            help="Only events after this one, of the first JOB where jobs are named; a publishing that was broken off "
            "names it. With --from: the number of different events before.",
            show_default=False,
        ),
    ] = 0
    rate: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="At most so many events a second. [default: no limit]")
    ] = None
    source: FromOption = None
    url: BrokerOption = None
    database_url: DatabaseOption = None
    as_json: JsonOption = False

    def wanted(self, jobs: Sequence[str], now: datetime) -> Wanted:
        """The events that are asked for. Raises typer.BadParameter."""
        from bso.replay.publication import Wanted

        return Wanted(
            jobs=jobs,
            types=known_types(self.types),
            since=None if self.since is None else moment_from(self.since, now=now),
            before=None if self.before is None else moment_from(self.before, now=now),
            after=self.after,
        )


@with_options
def publish(jobs: JobsArgument = None, *, options: PublishOptions) -> None:
    """Publish recorded events again, on the topic exchange bso.replay.

    Routing keys and bodies are those of live events. The exchange is another one, because trainings and dashboards
    take every event of bso.events for a new one. Bind a queue to bso.replay before: without one, events are lost.
    Events may arrive twice; (job_id, log_epoch, seq) identifies them.
    """
    wanted = options.wanted(jobs or (), datetime.now(UTC))
    broker = operators_broker(options.url, what="replays")
    sent = asyncio.run(_publish(wanted, broker, options))
    print_answer({"published": sent}, f"{counted(sent, 'event')} published on bso.replay", as_json=options.as_json)


def as_typed(options: Mapping[str, object]) -> list[str]:
    """Options and their values as words of a command line, without the passwords in addresses."""
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words += [name, re.sub(r"(?<=//)([^:/@]*):.*@", r"\1:***@", str(value))]
    return words


def command_for(wanted: Wanted, options: PublishOptions) -> str:
    """The command that publishes what is wanted, and otherwise has these options.

    Ages have become points in time: an age would mean another one later.
    """
    types = [word for name in wanted.types for word in ("--type", name)]
    words = as_typed(
        {
            "--since": wanted.since and wanted.since.isoformat(),
            "--before": wanted.before and wanted.before.isoformat(),
            "--after": wanted.after or None,
            "--rate": options.rate,
            "--from": options.source,
            "--url": options.url,
            "--database-url": options.database_url,
            "--json": options.as_json,
        }
    )
    return shlex.join(["bso", "replay", "publish", *wanted.jobs, *types, *words])


async def _publish(wanted: Wanted, address: str, options: PublishOptions) -> int:
    from bso.replay.publication import Gone, patient
    from bso.replay.publication import publish as publish_wanted
    from bso_broker.messages import event_message
    from bso_broker.rabbit import RabbitBroker

    gone = Gone(wanted)
    logged = log_of(options.source, options.database_url, command="bso replay publish")
    async with logged as log, RabbitBroker(address) as broker:
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
                return await publish_wanted(log, wanted, send_and_count, rate_per_s=options.rate, progress=counter)
            except BsoError as error:
                said = f"stopped after {counted(gone.events, 'event')}: {error}"
                if (rest := gone.rest()) is not None:
                    said += f"\nTo go on: {command_for(rest, options)}"
                raise CommandRefused(said) from error


async def _require_recorded(log: History, jobs: Collection[str]) -> None:
    unknown = [job_id for job_id in dict.fromkeys(jobs) if not await log.history(job_id, limit=1)]
    if unknown:
        raise CommandRefused(f"nothing is recorded of {', '.join(unknown)}")


def _say_that_it_waits(error: Retryable) -> None:
    print_notice(Text(f"{error}; trying again for up to {_PATIENCE_S:g} s"))
