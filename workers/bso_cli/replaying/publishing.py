"""``bso replay publish``: recorded events again, for subscribers of replays."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bso.domain.errors import BsoError
from bso.domain.quantities import counted
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
from bso_cli.terminal import print_answer, print_notice

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
            since=None if self.since is None else moment_from(self.since, option="--since", now=now),
            before=None if self.before is None else moment_from(self.before, option="--before", now=now),
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


async def _publish(wanted: Wanted, address: str, options: PublishOptions) -> int:
    from bso.replay.publication import patient
    from bso.replay.publication import publish as publish_wanted
    from bso.service.errors import EventUnreadable
    from bso_broker.messages import event_message
    from bso_broker.rabbit import RabbitBroker

    sent: int = 0
    last: StoredEvent | None = None
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
                nonlocal sent, last
                await send_patiently(events)
                sent, last = sent + len(events), events[-1]

            try:
                return await publish_wanted(log, wanted, send_and_count, rate_per_s=options.rate, progress=counter)
            except BsoError as error:
                rest = "" if last is None else f". {how_to_go_on(last, wanted.jobs)}"
                if isinstance(error, EventUnreadable):
                    rest += f". Behind the one that cannot be read: --after {error.event_id}"
                raise CommandRefused(f"stopped after {counted(sent, 'event')}: {error}{rest}") from error


def how_to_go_on(last: StoredEvent, jobs: Collection[str]) -> str:
    """Which command publishes the events after the last one that was published."""
    left = list(dict.fromkeys(jobs))
    left = left[left.index(last.recorded.job_id) :] if left else left
    only = f" and only these jobs: {' '.join(left)}" if left else ""
    return f"To go on, give the same command with --after {last.event_id}{only}"


async def _require_recorded(log: History, jobs: Collection[str]) -> None:
    unknown = [job_id for job_id in dict.fromkeys(jobs) if not await log.history(job_id, limit=1)]
    if unknown:
        raise CommandRefused(f"nothing is recorded of {', '.join(unknown)}")


def _say_that_it_waits(error: Retryable) -> None:
    print_notice(Text(f"{error}; trying again for up to {_PATIENCE_S:g} s"))
