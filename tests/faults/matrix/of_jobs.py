"""Faults of one job: its row is locked or damaged, or deciding on it takes long. All others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import sqlalchemy as sa

from bso.domain.decide import Rules
from bso.domain.trial import TrialState
from bso.replay.rebuild import rebuild
from bso.storage.tables import trial
from tests.faults.matrix.scenario import scenario
from tests.faults.matrix.stage import Stage
from tests.servers import eventually_async

_AT_ONCE = {"others_stall_s": 1.0, "others_slowest_s": 1.0}
_ALL_COME_BACK = {"others_stall_s": 1.0, "others_slowest_s": 2.0}
"""When 24 jobs are free again at once, the commands that were kept of them are decided beside those of others."""
_ONE_TIMEOUT = {"others_stall_s": 2.0, "others_slowest_s": 2.0}
"""Only writing finds that the row of a trial is held, after the database's shortest timeout of a lock, 1 s."""
_SOME_TIMEOUTS = {"others_stall_s": 3.0, "others_slowest_s": 5.0}


@scenario("somebody else's session holds the row of one job for 60 s", promises=_AT_ONCE, strikes_for_s=59.0)
async def row_locked(stage: Stage) -> None:
    await stage.begin()
    for lane in stage.lanes:
        lane.pause_s = 0.2  # what they do in such a long time is audited
    async with stage.fault(), stage.store.unit_of_work() as foreign:
        await foreign.lock([stage.harmed], creating=())
        await stage.pause(60.0)


@scenario(
    "somebody else's session holds the rows of 24 jobs for 12 s, each with two lanes",
    is_smoke=True,
    promises=_ALL_COME_BACK,
    strikes_for_s=11.0,
)
async def many_rows_locked(stage: Stage) -> None:
    await stage.begin()
    harmed = await stage.harm_more(24, lanes=2)
    async with stage.fault(), stage.store.unit_of_work() as foreign:
        await foreign.lock(harmed, creating=())
        await stage.pause(12.0)


@scenario(
    "somebody else's session holds the rows of all trials of one job for 20 s",
    promises=_ONE_TIMEOUT,
    strikes_for_s=5.0,  # a new trial of the job has a row that nobody holds
)
async def rows_of_trials_locked(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault(), _trials_locked(stage, [stage.harmed]):
        await stage.pause(20.0)


@scenario(
    "somebody else's session holds the rows of all trials of 24 jobs for 12 s, each with two lanes",
    promises=_SOME_TIMEOUTS,
    strikes_for_s=5.0,
)
async def rows_of_many_trials_locked(stage: Stage) -> None:
    await stage.begin()
    harmed = await stage.harm_more(24, lanes=2)
    await stage.all_go_on()  # each has a trial
    async with stage.fault(), _trials_locked(stage, harmed):
        await stage.pause(12.0)


@asynccontextmanager
async def _trials_locked(stage: Stage, job_ids: Sequence[str]) -> AsyncIterator[None]:
    """Hold every row of these jobs' trials, of which some run; the rows of the jobs themselves stay free."""
    rows = sa.select(trial.c.state).where(trial.c.job_id.in_(job_ids)).with_for_update()
    while True:
        async with stage.store.engine.begin() as foreign:
            if TrialState.RUNNING.value in (await foreign.execute(rows)).scalars():
                yield
                return
        await asyncio.sleep(0.01)  # between two trials: nobody would ever write a row that is held


@scenario("somebody else's session holds the epoch of the log for 12 s", promises=_AT_ONCE)
async def log_epoch_locked(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault(), stage.store.engine.begin() as foreign:
        held = (await foreign.execute(sa.text("SELECT * FROM bso_log_epoch FOR UPDATE"))).all()
        assert held, "there is no row to hold: the fault did not strike"
        await stage.pause(12.0)


@scenario("the row of one job says less than its log", promises=_AT_ONCE, strikes_for_s=4.0)
async def row_behind_its_log(stage: Stage) -> None:
    await _damaged(stage, "UPDATE job SET revision = revision + 1, last_seq = last_seq - 1 WHERE job_id = '{job}'")


@scenario("the row of one job is missing", promises=_AT_ONCE, strikes_for_s=4.0)
async def row_missing(stage: Stage) -> None:
    await _damaged(stage, "DELETE FROM job WHERE job_id = '{job}'")


@scenario("the state of one job cannot be read", promises=_AT_ONCE, strikes_for_s=4.0)
async def row_unreadable(stage: Stage) -> None:
    await _damaged(stage, "UPDATE job SET revision = revision + 1, state = '[' WHERE job_id = '{job}'")


async def _damaged(stage: Stage, damage: str) -> None:
    await stage.begin()
    async with stage.fault():
        await stage.execute(damage.format(job=stage.harmed))

        async def is_parked() -> bool:
            return any(job.job_id == stage.harmed for job in await stage.store.parked_jobs.all())

        await eventually_async(is_parked, what="a parked job")
        await stage.pause(10.0)
        await rebuild(stage.store, stage.harmed, rules=Rules())
