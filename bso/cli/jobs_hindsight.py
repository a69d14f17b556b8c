"""What was known when a trial began, as a table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.markup import escape

from bso.cli.access import whole_history
from bso.cli.jobs_printed import arm_cells
from bso.cli.refusals import Refused
from bso.cli.terminal import joules, listed, table

if TYPE_CHECKING:
    from bso.domain.log import RecordedEvent
    from bso.replay.hindsight import Hindsight
    from bso.service.ports import Store

_COLUMNS = ("batch size", "status", "costs", "converged", "mean cost", "expected cost")


async def known_before(store: Store, job_id: str, trial_number: int) -> Hindsight:
    """What was known when a trial began. Raises Refused where the log begins after it."""
    from bso.replay.folding import LogBroken
    from bso.replay.hindsight import before_trial

    async def log() -> AsyncIterator[RecordedEvent]:
        async for stored in whole_history(store, job_id):
            yield stored.recorded

    try:
        found = await before_trial(job_id, trial_number, log())
    except LogBroken as error:
        raise Refused(f"what was known when trial {trial_number} began cannot be told: {error}") from error
    if found is None:
        raise Refused(
            f"the log of job {job_id} no longer holds the beginning of trial {trial_number}: it was pruned "
            "(`bso events prune` wrote it to a file)"
        )
    return found


def known_table(seen: Hindsight) -> RenderableType:
    """The batch sizes there were to choose from, what each was expected to cost, and which one was chosen."""
    number, chosen = seen.started.trial_number, seen.started.batch_size
    running = f"Running at that time: {listed(seen.running)}" if seen.running else "No other trial was running."
    if seen.known is None:
        return f"[bold]When trial {number} began[/], nothing was known on {escape(seen.hardware)}. {running}"
    made = table(
        f"When trial {number} began on {escape(seen.hardware)}, and {chosen} was chosen",
        *_COLUMNS,
        right=("batch size", "costs", "converged", "mean cost", "expected cost"),
    )
    for arm in seen.known.arms:
        made.add_row(*arm_cells(arm), style="bold green" if arm.batch_size == chosen else None)
    reference = seen.known.reference
    cheapest = "" if reference is None else f" The cheapest converged run had cost {joules(reference)}."
    bound = seen.started.bound
    limit = " It was not bounded." if bound is None else f" It was to be stopped above {joules(bound)}."
    return Group(made, f"{running}.".replace("..", ".") + cheapest + limit)
