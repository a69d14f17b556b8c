"""What recorded jobs say of the machines that they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bso.domain.quantities import counted, percent
from bso_cli.findings import Finding, broken, note, ok
from bso_cli.jobs_listed import trouble_of

if TYPE_CHECKING:
    from bso.service.listed_jobs import ListedJob
    from bso.service.ports import Store

MOST_JOBS = 200
"""Jobs that are looked at, for time."""
_NOISY = 0.15
_MOST_PAGES = 100  # of events that are not published
_MOST_NAMED = 3


async def check_parked(store: Store) -> list[Finding]:
    """Whether there are jobs whose commands cannot be decided."""
    parked = await store.parked_jobs.all()
    if not parked:
        return []
    others = f", and {counted(len(parked) - 1, 'more job')} (`bso jobs list`)" if len(parked) > 1 else ""
    found = f"{trouble_of(parked[0])}{others}"
    return [broken("jobs in trouble", found, "all other jobs go on; workers try again by themselves")]


async def check_log(store: Store) -> list[Finding]:
    """Whether workers have stopped because the database holds an older state than before."""
    epoch = await store.log_epochs.current()
    if epoch is not None and epoch.outdated_at is None:
        return []
    found = "it holds an older state than before, as after restoring a backup: workers take no commands"
    return [broken("database", found, "when the restore is complete, run `bso restored`")]


async def check_events(store: Store) -> list[Finding]:
    """Whether there are events that are not published, because this release cannot read them."""
    from bso.service.query_answers import UNPUBLISHED_S

    unreadable, after = 0, 0
    for _ in range(_MOST_PAGES):
        page = await store.unpublished(older_than_s=UNPUBLISHED_S, after=after)
        unreadable += page.unreadable
        if page.next_after is None:
            break
        after = page.next_after
    if not unreadable:
        return []
    found = f"{counted(unreadable, 'event')} cannot be read by this release, and {'is' if unreadable == 1 else 'are'}"
    advice = "a newer release may have recorded them: its workers publish them; else `bso replay verify` names the job"
    return [broken("events", f"{found} not published", advice)]


async def check_jobs(store: Store) -> list[Finding]:
    """Which jobs cannot be read, or need attention, and by how much costs vary, as far as jobs have shown it."""
    from bso.service.listed_jobs import listed_job
    from bso.service.query_answers import readable_overviews

    jobs = [listed_job(overview) for overview in await readable_overviews(store, after="", limit=MOST_JOBS)]
    return [*_unreadable(jobs), *_attention(jobs), *_noise(jobs)]


def _unreadable(jobs: Sequence[ListedJob]) -> list[Finding]:
    """Which jobs cannot be read here: they are damaged, or a newer release has written them."""
    from bso.service.listed_jobs import UNREADABLE

    found = [job.overview.summary.job_id for job in jobs if job.attention == UNREADABLE]
    if not found:
        return []
    others = f", and {counted(len(found) - 1, 'more job')} (`bso jobs list`)" if len(found) > 1 else ""
    advice = f"`bso replay verify {found[0]}` says why, and what to do; all other jobs go on"
    return [broken("jobs", f"job {found[0]} cannot be read{others}", advice)]


def _attention(jobs: Sequence[ListedJob]) -> list[Finding]:
    """Which jobs end one recurrence after the other without a model."""
    found = [job.attention_in_full for job in jobs if job.attention_in_full]
    others = f"; and {counted(len(found) - 1, 'more job')} (`bso jobs list`)" if len(found) > 1 else ""
    advice = "a recurrence is one training there, until one reaches the target"
    return [note("jobs", f"{found[0]}{others}", advice)] if found else []


def _noise(jobs: Sequence[ListedJob]) -> list[Finding]:
    """By how much the cost of an epoch varies from run to run."""
    found: dict[str, float] = {}
    for job in jobs:
        kinds = () if job.description is None else job.description.kinds
        noises = [kind.confidence.cost_noise for kind in kinds if kind.confidence is not None]
        known = [noise for noise in noises if noise is not None]
        if known:
            found[job.overview.summary.job_id] = max(known)
    if not found:
        return []
    noisy = sorted((job_id for job_id in found if found[job_id] > _NOISY), key=lambda job_id: -found[job_id])
    if not noisy:
        most = percent(max(found.values()), 1)
        return [
            ok("noise", f"what an epoch costs varies by {most} or less from run to run in {counted(len(found), 'job')}")
        ]
    named = ", ".join(f"{percent(found[job_id], 1)} in job {job_id}" for job_id in noisy[:_MOST_NAMED])
    more = f", and in {counted(len(noisy) - _MOST_NAMED, 'more job')}" if len(noisy) > _MOST_NAMED else ""
    advice = "choices take more runs there: is a node shared, or energy assumed (docs/energy.md)?"
    return [note("noise", f"what an epoch costs varies from run to run: by {named}{more}", advice)]
