"""The stage of one scenario: a virtual host, a database, workers, lanes and trainings, and a clock for the fault."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from bso.storage import open_store
from bso.storage.connections import PATIENT
from bso_broker.rabbit import RabbitBroker
from bso_migrations import upgrade
from tests.faults.matrix.lanes import Lane, Pulse, Sender, lanes_of, new_jobs
from tests.faults.matrix.ledger import Ledger
from tests.faults.matrix.pair import Pair
from tests.integration.workers.processes import MODULE, WorkerProcess
from tests.servers import TcpProxy, eventually_async
from tests.servers.proxy import Watch
from tests.servers.sql import execute

_SCRIPT = Path(__file__).with_name("training_script.py")
_RECOVERY_S = 150.0
"""So long a scenario waits for everything to go on, and for all answers: longer than two pauses of a parked job."""
_ENDED_S = 150.0
_QUICK = {"relay_interval_s": 1.0, "relay_age_s": 2.0}
"""Only what the audit waits for is quicker than usual."""


@dataclass(kw_only=True)
class Stage:
    """What a scenario plays on. ``harmed`` is the job that it may harm; all others are others.

    ``dead_letters``: so many does the scenario lead to. Events up to ``events_forgotten_until``, an event_id, may never
    have been published.
    """

    pair: Pair
    rng: random.Random
    folder: Path
    worker_program: Sequence[str] = MODULE
    amqp_url: str = ""
    trainings_url: str = ""
    database_url: str = ""
    workers: list[WorkerProcess] = field(default_factory=list)
    ended_on_purpose: list[WorkerProcess] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    harmed: str = ""
    others: Sequence[str] = ()
    lanes: list[Lane] = field(default_factory=list)
    struck_s: float = 0.0
    mended_s: float = 0.0
    recovered_s: float = 0.0
    harmed_recovered_s: float = 0.0
    trainings_recovered_s: float = 0.0
    over_s: float = 0.0
    forgotten_until_s: float = 0.0
    dead_letters: int = 0
    events_forgotten_until: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    surprises: list[str] = field(default_factory=list)
    has_servers: ClassVar[bool] = True
    _cleaning: AsyncExitStack = field(default_factory=AsyncExitStack)
    _running: list[asyncio.Task[None]] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self.amqp_url = await asyncio.to_thread(self.pair.management.create_vhost)
        self.database_url = await asyncio.to_thread(self.pair.create_database)
        await upgrade(self.database_url)
        self.store = open_store(self.database_url, limits=PATIENT)
        self._cleaning.push_async_callback(self.store.close)
        broker = await self._cleaning.enter_async_context(RabbitBroker(self.amqp_url))
        self.sender = Sender(caller=broker.rpc_client(), ledger=self.ledger, rng=self.rng)
        self.harmed, *others = new_jobs(self.rng, 4)
        self.others = others
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sender.is_over.set()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.end_processes()
        await asyncio.to_thread(self.pair.mend)
        await self._cleaning.aclose()
        with suppress(Exception):  # what is left behind is no finding
            await asyncio.to_thread(self.pair.management.delete_vhost, self.amqp_url)
            await asyncio.to_thread(self.pair.drop_database, self.database_url)

    def end_processes(self) -> None:
        """SIGKILL workers and trainings that still run."""
        processes = [worker.process for worker in self.workers] + [training.process for training in self.trainings]
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def worker(
        self,
        *,
        amqp_url: str | None = None,
        database_url: str | None = None,
        program: Sequence[str] | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> WorkerProcess:
        """Start a worker. ``environ`` holds further variables; other arguments are settings."""
        variables = {
            "BSO_AMQP_URL": amqp_url or self.amqp_url,
            "BSO_DATABASE_URL": database_url or self.database_url,
            "BSO_HEALTH_PORT": "0",
            "BSO_LOG_FORMAT": "json",
        } | {f"BSO_{name.upper()}": str(value) for name, value in (_QUICK | settings).items()}
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        self.workers.append(
            WorkerProcess(log, {**variables, **(environ or {})}, program=program or self.worker_program)
        )
        return self.workers[-1]

    @property
    def living(self) -> list[WorkerProcess]:
        """The workers that run."""
        return [worker for worker in self.workers if worker.process.poll() is None]

    def kill(self, worker: WorkerProcess) -> None:
        """SIGKILL a worker."""
        self.ended_on_purpose.append(worker)
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()

    async def begin(
        self,
        *,
        workers: int = 2,
        lanes: int = 2,
        trainings: int = 2,
        pulses: int = 2,
        trainings_url: str | None = None,
        **settings: Any,
    ) -> None:
        """Start workers, lanes and trainings, and wait until all of them get on."""
        self.trainings_url = trainings_url or self.amqp_url
        for _ in range(workers):
            self.worker(**settings)
        await eventually_async(self._all_ready, what="workers that take commands")  # they declare the queue
        await self.sender.caller.start()
        self._cleaning.push_async_callback(self.sender.caller.close)
        for job_id in (self.harmed, *self.others):
            own = list(lanes_of(job_id, self.sender, at_once=lanes, is_others=job_id != self.harmed))
            await own[0].register()
            self.lanes += own
        for _ in range(trainings):
            self.train()
        self.run(self.lanes)
        for job_id in self.others[:pulses]:
            self._running.append(asyncio.create_task(Pulse(job_id=job_id, sender=self.sender).run()))
        await self.all_go_on()

    def train(self, *, like: Training | None = None, nights: int | None = None) -> None:
        """Start a training of a job of its own, or ``like`` another one, of its job; as often as ``nights`` says."""
        number = len(self.trainings)
        job_id = like.job_id if like else f"training-{self.rng.getrandbits(32):08x}"
        environ = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
        state_dir = like.state_dir if like else self.folder / f"state-{number}"
        environ |= {"BSO_URL": self.trainings_url, "BSO_STATE_DIR": str(state_dir)}
        environ["BSO_ENERGY"] = "assumed"
        journal = self.folder / f"training-{number}.jsonl"
        how_often = [str(nights)] if nights else []
        with (self.folder / f"training-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(journal), job_id, str(self.rng.getrandbits(32)), *how_often],
                stdout=log,
                stderr=log,
                env=environ,
            )
        self.trainings.append(Training(job_id=job_id, journal=journal, state_dir=state_dir, process=process))

    def run(self, lanes: Sequence[Lane]) -> None:
        """Start lanes."""
        self._running += [asyncio.create_task(lane.run()) for lane in lanes]

    @asynccontextmanager
    async def fault(self) -> AsyncIterator[None]:
        """The time of the fault: from its beginning until it is mended."""
        self.struck_s = self.struck_s or self.now_s()
        try:
            yield
        finally:
            self.mended_s = self.now_s()

    async def suffer(self, strike: Callable[[], object], seconds: float, mend: Callable[[], object]) -> None:
        """Strike, let the fault last, and mend it; both are called in a thread."""
        async with self.fault():
            await asyncio.to_thread(strike)
            await self.pause(seconds)
            await asyncio.to_thread(mend)

    def now_s(self) -> float:
        """The clock of the ledger [s]."""
        return asyncio.get_running_loop().time()

    async def progress(self, answers: int, *, is_others: bool | None = None) -> None:
        """Wait until so many more commands are answered."""
        before = self._answered(is_others)

        def is_there() -> bool:
            return self._answered(is_others) >= before + answers

        await eventually_async(is_there, timeout_s=_RECOVERY_S, what=f"{answers} more answers")

    def _answered(self, is_others: bool | None) -> int:
        return sum(
            one.answered_s is not None for one in self.ledger.asked if is_others is None or one.is_others is is_others
        )

    def _decided(self) -> int:
        return sum(one.is_decided for one in self.ledger.asked)

    async def database_version(self) -> str:
        """What the server says of itself."""
        async with self.store.engine.connect() as connection:
            return str((await connection.execute(sa.text("SELECT version()"))).scalar_one())

    async def highest_event_id(self) -> int:
        """The event_id of the last event of the log; 0: there is none."""
        job_ids = await self.store.job_ids()
        return max([await self.store.last_event_id(job_id) for job_id in job_ids], default=0)

    async def pause(self, least_s: float, most_s: float | None = None) -> None:
        """Let a random time pass under load."""
        await asyncio.sleep(self.rng.uniform(least_s, most_s or least_s))

    async def all_go_on(self) -> None:
        """Wait until each lane has a decision on a command sent from now on, workers are ready, and trainings begin."""
        since_s = self.now_s()

        def going(is_others: bool) -> Callable[[], bool]:
            wanted = {lane.name for lane in self.lanes if lane.is_others is is_others}
            return lambda: wanted <= self.ledger.lanes_with_a_decision(since_s=since_s)

        await self._within_reason(going(True), "answers for jobs without a fault")
        await self._within_reason(self._all_ready, "ready workers")
        self.recovered_s = self.now_s()
        await self._within_reason(going(False), "answers for the job with the fault")
        self.harmed_recovered_s = self.now_s()
        await self._within_reason(lambda: self.trainings_begin(since_s=since_s), "a new trial of each training")
        self.trainings_recovered_s = self.now_s()

    def trainings_begin(self, *, since_s: float) -> bool:
        """Whether each training that runs has begun a trial since then which the optimizer knows."""
        running = [one for one in self.trainings if one.process.poll() is None]
        return all(any(_begins(fact) and float(str(fact["at_s"])) > since_s for fact in one.facts) for one in running)

    async def all_answered(self) -> None:
        """Wait until all that was sent before the recovery is answered: lost commands and replies come again."""
        with suppress(AssertionError):  # what is not answered is counted at the end
            await eventually_async(
                lambda: not self.ledger.unanswered(before_s=self.recovered_s), timeout_s=_RECOVERY_S, what="all answers"
            )

    async def _all_ready(self) -> bool:
        pages = [await asyncio.to_thread(worker.page, "readyz") for worker in self.living]
        return bool(pages) and all(status == 200 for status, _ in pages)

    async def _within_reason(self, condition: Callable[[], bool] | Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            await eventually_async(condition, timeout_s=_RECOVERY_S, what=what)
        except AssertionError as error:
            reasons = [await asyncio.to_thread(worker.reasons) for worker in self.living]  # the lanes go on
            self.surprises.append(f"no recovery: {error}; not ready because {reasons}"[:500])

    async def end(self) -> None:
        """Let trainings end their recurrence and lanes stop; what is not answered then is no longer waited for."""
        for training in self.trainings:
            if training.process.poll() is None:
                training.ask_to_end()
        if self._running:
            await self._end_lanes()
        for training in self.trainings:
            try:
                await asyncio.to_thread(training.process.wait, _ENDED_S)
            except subprocess.TimeoutExpired:
                self.surprises.append(f"{training.job_id}: the training did not come to its end")

    async def _end_lanes(self) -> None:
        self.over_s = self.now_s()
        self.sender.is_over.set()
        _, left = await asyncio.wait(self._running, timeout=60)
        broken = [repr(task.exception()) for task in self._running if task not in left and task.exception()]
        self.surprises += [f"a lane broke: {words}" for words in broken[:3]]
        self.surprises += ["lanes do not end"] if left else []

    async def crowd(self, lanes: int) -> None:
        """Start so many more lanes, each with a job of its own, that pause for nothing."""
        jobs = new_jobs(self.rng, lanes)
        more = [lane for job_id in jobs for lane in lanes_of(job_id, self.sender, at_once=1, is_others=True)]
        for lane in more:
            lane.pause_s = 0.0
        self.run([*more])
        self.lanes += more

    async def harm_more(self, jobs: int, *, lanes: int) -> Sequence[str]:
        """Register so many more jobs that the scenario may harm, and start their lanes.

        All of them together ask as often as one job would, or else everybody would wait for the processor.
        """
        more = new_jobs(self.rng, jobs)
        for job_id in more:
            own = list(lanes_of(job_id, self.sender, at_once=lanes, is_others=False))
            for lane in own:
                lane.pause_s *= jobs
            await own[0].register()
            self.lanes += own
            self.run(own)
        return more

    async def decided_within(self, seconds: float) -> int:
        """How many commands of lanes are decided in this time."""
        before = self._decided()
        await self.pause(seconds)
        return self._decided() - before

    async def proxied(self, url: str, *, watch: Watch | None = None) -> TcpProxy:
        """A proxy in front of a server, which can be cut, stalled, and made slow."""
        port = 5672 if url.startswith("amqp:") else None
        proxy = TcpProxy(url, default_port=port, watch=watch)
        await asyncio.to_thread(proxy.start)
        self._cleaning.push_async_callback(asyncio.to_thread, proxy.close)
        return proxy

    def forget(self, *, since_s: float) -> None:
        """Say that what was acknowledged since then has been taken away."""
        for one in self.ledger.asked:
            one.is_forgotten = one.answered_s is not None and one.answered_s >= since_s
        self.forgotten_until_s = time.monotonic()
        self.sender.expect_a_restore()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run an operator's command."""
        environ = {**os.environ, "BSO_DATABASE_URL": self.database_url, "BSO_AMQP_URL": self.amqp_url}
        return subprocess.run(
            [sys.executable, "-m", "bso_cli", *arguments], env=environ, capture_output=True, text=True, check=False
        )

    async def execute(self, *statements: str) -> None:
        """Run SQL as the owner of the database, in one transaction."""
        await execute(self.store, *statements)


@dataclass(kw_only=True)
class Training:
    """A training process, and the file in which it writes what it sees."""

    job_id: str
    journal: Path
    state_dir: Path
    process: subprocess.Popen[bytes]

    def ask_to_end(self) -> None:
        """Let it end its recurrence, and begin no other."""
        self.process.send_signal(signal.SIGUSR1)

    @property
    def output(self) -> str:
        """What it has printed."""
        return self.journal.with_suffix(".log").read_text(encoding="utf-8", errors="replace")

    @property
    def facts(self) -> list[dict[str, object]]:
        """What it has noted so far, in order."""
        if not self.journal.exists():
            return []
        lines = self.journal.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be cut off


def _begins(fact: dict[str, object]) -> bool:
    return fact["did"] == "evaluated" and fact["epoch"] == 1 and fact["trial_number"] is not None


@asynccontextmanager
async def new_stage(
    pair: Pair, seed: int, *, kind: type[Stage] = Stage, worker_program: Sequence[str] = MODULE
) -> AsyncIterator[Stage]:
    """A stage with a folder for its logs, which is kept where something went wrong."""
    with tempfile.TemporaryDirectory(prefix="bso-faults-") as folder:
        async with kind(
            pair=pair, rng=random.Random(seed), folder=Path(folder), worker_program=worker_program
        ) as stage:
            yield stage
