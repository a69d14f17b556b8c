"""What was known when a trial began, as a table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from bso.domain.quantities import joules, listed
from bso_cli.access import whole_history
from bso_cli.jobs_printed import costs_table, explained
from bso_cli.refusals import CommandRefused
from bso_cli.tables import Table

if TYPE_CHECKING:
    from bso.domain.log import RecordedEvent
    from bso.replay.hindsight import Hindsight
    from bso.service.ports import JobReads


async def known_before(store: JobReads, job_id: str, trial_number: int) -> Hindsight:
    """What was known when a trial began. Raises CommandRefused where the log begins after it."""
    from bso.replay.fold import LogBroken
    from bso.replay.hindsight import before_trial

    async def log() -> AsyncIterator[RecordedEvent]:
        async for stored in whole_history(store, job_id):
            yield stored.recorded

    try:
        found = await before_trial(job_id, trial_number, log())
    except LogBroken as error:
        raise CommandRefused(
            f"the knowledge at the beginning of trial {trial_number} cannot be restored: {error}"
        ) from error
    if found is None:
        raise CommandRefused(
            f"the log of job {job_id} no longer holds the beginning of trial {trial_number}: it was pruned "
            "(`bso events prune` wrote it to a file)"
        )
    return found


def known_table(seen: Hindsight) -> Table:
    """The batch sizes there were to choose from, what each was expected to cost, and which one was chosen."""
    number, chosen = seen.started.trial_number, seen.started.batch_size
    others = f"Running at that time: {listed(seen.running)}." if seen.running else "No other trial was running."
    if seen.known is None:
        return Table(f"When trial {number} began, nothing was known on {seen.hardware}", notes=[others])
    title = f"When trial {number} began on {seen.hardware}, batch size {chosen} was chosen"
    made = costs_table(title, seen.known, seen.tallies, marked=chosen)
    reference = seen.known.reference
    cheapest = "" if reference is None else f" The cheapest training that converged had cost {joules(reference)}."
    bound = seen.started.bound
    limit = " It was not bounded." if bound is None else f" The trial was to be stopped above {joules(bound)}."
    made.notes.insert(0, others + cheapest + limit)
    made.notes.append(explained(seen.known.about_costs, has_means=seen.tallies is not None))
    return made
