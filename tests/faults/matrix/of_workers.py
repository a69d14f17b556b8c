"""Faults of workers: killed, frozen, cut off, without files, with wrong clocks."""

from __future__ import annotations

import asyncio
import resource
import signal
import urllib.request
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path

from tests.faults.matrix.of_databases import end_a_session
from tests.faults.matrix.pair import faked_clock
from tests.faults.matrix.scenario import UNTOUCHED, scenario
from tests.faults.matrix.stage import Stage
from tests.integration.workers.processes import WorkerProcess
from tests.servers import eventually_async

_COMPLAINTS = ("warning", "error", "critical")
CRASHING = str(Path(__file__).parents[1] / "crashing_worker.py")


@scenario("nothing: the same load without a fault", is_smoke=True, promises={"others_stall_s": 2.0})
async def calm(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        await stage.progress(500)
    logged = [line for worker in stage.workers for line in worker.lines() if line["level"] in _COMPLAINTS]
    stage.surprises += [f"without a fault a worker logged {line}" for line in logged[:3]]


@scenario("twelve SIGKILLs among three workers; each is replaced", is_smoke=True, promises={"others_stall_s": 4.0})
async def workers_killed(stage: Stage) -> None:
    await stage.begin(workers=3)
    async with stage.fault():
        for _ in range(12):
            await stage.progress(stage.rng.randrange(1, 60))
            stage.kill(stage.rng.choice(stage.living))
            stage.worker()


@scenario(
    "a worker alone, which decides without reading: twelve SIGKILLs, each replaced, and sixty ended sessions of its "
    "database",
    databases=["MariaDB", "MySQL"],
    promises={"others_stall_s": 8.0},
)
async def worker_alone(stage: Stage) -> None:
    await stage.begin(workers=1, pulses=4)
    unread = 0.0
    async with stage.fault():
        for _ in range(12):
            await stage.progress(stage.rng.randrange(40, 120))
            unread += stage.living[0].metric("bso_optimistic_batches_total", outcome="recorded")
            for _ in range(5):
                await end_a_session(stage)
                await stage.pause(0.0, 0.2)
            stage.kill(stage.living[0])
            stage.worker()
    assert unread > 10, f"only {unread:.0f} batches were decided without reading"


@scenario(
    "workers killed at a chosen line: before and after the commit, after the reply, after events are published and "
    "before that is noted, after parking",
    promises=UNTOUCHED,
)
async def workers_killed_at_a_line(stage: Stage) -> None:
    await stage.begin(lanes=4)
    async with stage.fault():
        for moment in ("before_commit", "after_commit", "after_reply", "after_publishing"):
            doomed = _doomed(stage, moment)
            await asyncio.to_thread(doomed.wait)
        doomed = _doomed(stage, "after_parking")
        while doomed.process.poll() is None:  # a report is parked, and there may be none under way
            async with stage.store.unit_of_work() as foreign:
                await foreign.lock([stage.harmed], creating=())
                await stage.pause(6.5)  # longer than the 5 s after which a job is parked
            await stage.progress(20)


def _doomed(stage: Stage, moment: str) -> WorkerProcess:
    doomed = stage.worker(program=(CRASHING, moment))
    stage.ended_on_purpose.append(doomed)
    return doomed


@scenario("all workers away for 15 s", strikes_for_s=14.0)
async def workers_away(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        for worker in stage.living:
            stage.kill(worker)
        await stage.pause(15.0)
        for _ in range(2):
            stage.worker()


@scenario(
    "SIGSTOP of a worker for 21 s, at a random moment",
    group="frozen",
    promises={"others_stall_s": 12.0, "others_slowest_s": 20.0},
)
async def worker_frozen(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        await stage.pause(0.0, 0.5)
        victim = stage.rng.choice(stage.living)
        victim.process.send_signal(signal.SIGSTOP)
        await stage.pause(21.0)
        victim.process.send_signal(signal.SIGCONT)


@scenario(
    "SIGSTOP of a worker inside its transaction, for 21 s",
    group="frozen",
    promises={"others_stall_s": 12.0, "others_slowest_s": 20.0},
)
async def worker_frozen_in_transaction(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        victim = stage.worker(program=(CRASHING, "before_commit_frozen"))
        await eventually_async(lambda: _is_stopped(victim), what="a worker that has stopped in its transaction")
        await stage.pause(21.0)
        victim.process.send_signal(signal.SIGCONT)


@scenario(
    "a worker's machine vanishes inside a transaction: its connections to both servers stay half-open",
    group="frozen",
    promises={"others_stall_s": 12.0, "others_slowest_s": 20.0},
)
async def worker_vanished(stage: Stage) -> None:
    await stage.begin()
    amqp, database = await stage.proxied(stage.amqp_url), await stage.proxied(stage.database_url)
    async with stage.fault():
        victim = stage.worker(amqp_url=amqp.url, database_url=database.url, program=(CRASHING, "before_commit_frozen"))
        await eventually_async(lambda: _is_stopped(victim), what="a worker inside a transaction")
        database.stall()
        amqp.stall()
        stage.kill(victim)
        await stage.pause(21.0)


@scenario("the clocks of two workers go 7 h ahead and 7 h behind; leases of 8 s", promises=UNTOUCHED)
async def clocks_of_workers(stage: Stage) -> None:
    clocks = [stage.folder / "clock-1", stage.folder / "clock-2"]
    workers = [stage.worker(environ=faked_clock(clock), lease_s=8.0) for clock in clocks]
    await stage.begin(workers=0)
    async with stage.fault():
        for clock, shift in zip(clocks, ("+7h", "-7h"), strict=True):
            clock.write_text(shift)
        await stage.progress(300)
        await stage.pause(10.0)
    assert len(workers) == len(stage.living)
    for worker, hours in zip(workers, (7, -7), strict=True):
        shift_s = (_clock_of(worker) - datetime.now(UTC)).total_seconds()
        assert abs(shift_s - 3600.0 * hours) < 60.0, f"the clock of {worker.log.name} is {shift_s:.0f} s ahead"


@scenario("a worker is left without file descriptors, and its connections are cut, for 10 s", promises=UNTOUCHED)
async def file_descriptors_exhausted(stage: Stage) -> None:
    await stage.begin()
    amqp, database = await stage.proxied(stage.amqp_url), await stage.proxied(stage.database_url)
    victim = stage.worker(amqp_url=amqp.url, database_url=database.url)
    await asyncio.to_thread(victim.ready)
    async with stage.fault():
        limits = resource.prlimit(victim.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(victim.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        amqp.drop()
        database.drop()
        await eventually_async(partial(_is_away, victim), what="a worker that is not ready")
        await stage.pause(10.0)
        resource.prlimit(victim.process.pid, resource.RLIMIT_NOFILE, limits)


def _clock_of(worker: WorkerProcess) -> datetime:
    """The time that a worker's health pages say."""
    with urllib.request.urlopen(f"http://127.0.0.1:{worker.lines('started')[0]['port']}/livez") as answer:
        return parsedate_to_datetime(answer.headers["Date"])


async def _is_away(worker: WorkerProcess) -> bool:
    status, _ = await asyncio.to_thread(lambda: worker.page("readyz", timeout_s=1.0))
    return status != 200


def _is_stopped(worker: WorkerProcess) -> bool:
    assert worker.process.poll() is None, f"the worker ended: {worker.text()}"
    state = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"
