"""A backup is restored under running workers: they stop, say why, and go on after `bso restored`, as the page says."""

import asyncio
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bso.domain.commands import BeginTrial, Command
from bso.domain.log import FIRST_EPOCH, RecordedEvent
from bso.domain.replies import EpochJudged, Reply, TrialBegun
from bso.schema.codec import decode_event, published
from bso.service.records import LogEpoch
from bso.storage import SqlStore, open_store
from bso_broker.rabbit import RabbitBroker
from bso_migrations import upgrade
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import HARDWARE, Queue, audit, history, register, report
from tests.servers import PATIENCE_S, eventually_async
from tools.private_servers import MariaDB

PAGE = Path(__file__).parents[2] / "docs/restore.md"
JOBS = ("digits-nightly", "vision-nightly", "speech-weekly")
Place = tuple[str, int, int]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Somebody who types what the page says, in a folder of their own, with logins for all they need."""

    folder: Path
    database_url: str
    environment: dict[str, str]

    async def types(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the page, whatever its end is."""
        assert command in typed(), f"the page does not say {command!r}"
        return await asyncio.to_thread(self.run, command)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command that the page need not have."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    async def succeeds(self, command: str) -> str:
        """Run a command of the page to a good end; what it printed."""
        done = await self.types(command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout


def typed() -> Sequence[str]:
    """The commands of the page, in their order."""
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


@dataclass(kw_only=True)
class Trainings:
    """Trainings that go on whatever is answered; what was acknowledged, by command_id, in its order."""

    ask: Queue
    acknowledged: list[str] = field(default_factory=list)
    _is_over: bool = False

    async def train(self, job_id: str) -> None:
        """One trial after another; a training that is refused gives up, and the next one begins."""
        while not self._is_over:
            begun = await self._send(job_id, BeginTrial(hardware=HARDWARE, recurrence_id=uuid.uuid4().hex))
            epoch = 0
            while isinstance(begun, TrialBegun):
                epoch += 1
                judged = await self._send(job_id, report(begun, epoch))
                if not isinstance(judged, EpochJudged) or judged.should_stop:
                    break

    async def _send(self, job_id: str, command: Command) -> Reply:
        command_id = str(uuid.uuid4())
        reply = await self.ask(job_id, command, command_id=command_id)
        if isinstance(reply, TrialBegun | EpochJudged):
            self.acknowledged.append(command_id)
        return reply

    async def progress(self, commands: int = 60) -> None:
        """Wait until so many more commands were acknowledged."""
        wanted = len(self.acknowledged) + commands
        await eventually_async(lambda: len(self.acknowledged) >= wanted, what=f"{commands} more acknowledgements")

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Train all jobs inside the block, and to the end of the trials under way."""
        async with asyncio.TaskGroup() as group:
            for job_id in JOBS * 2:
                group.create_task(self.train(job_id))
            try:
                yield
            finally:
                self._is_over = True


@dataclass(kw_only=True)
class Consumer:
    """Follows events as docs/messages.md says: by (job_id, log_epoch, seq), dropping what it has seen."""

    seen: dict[Place, RecordedEvent] = field(default_factory=dict)

    async def follow(self, amqp_url: str, is_there: asyncio.Event) -> None:
        subscriber = RabbitBroker(amqp_url).event_subscriber()
        await subscriber.start()
        await eventually_async(subscriber.connected.is_set)
        is_there.set()
        try:
            async for event in subscriber:
                recorded = decode_event(event.body)
                place = (recorded.job_id, recorded.log_epoch, recorded.seq)
                first = self.seen.setdefault(place, recorded)
                assert first == recorded, "one place, two events"
        finally:
            await subscriber.close()

    def log(self, job_id: str) -> list[RecordedEvent]:
        """The log of a job: a later epoch makes void what an earlier one had at the same seq and above."""
        found: list[RecordedEvent] = []
        for place in sorted(place for place in self.seen if place[0] == job_id):
            while found and found[-1].seq >= place[2]:
                found.pop()
            found.append(self.seen[place])
        return found


@pytest.fixture
def database(mariadb_server: MariaDB, tmp_path: Path) -> Iterator[str]:
    """A database of the name that the page has; its programs find it by the user's configuration."""
    mariadb_server.start()
    mariadb_server.execute("CREATE DATABASE bso CHARACTER SET utf8mb4")
    url = f"{mariadb_server.url}bso"
    asyncio.run(upgrade(url))
    (tmp_path / ".my.cnf").write_text(f"[client]\nuser=root\nsocket={mariadb_server.socket}\n", encoding="utf-8")
    yield url
    mariadb_server.execute("DROP DATABASE bso")


@pytest.fixture
async def store(database: str) -> AsyncIterator[SqlStore]:
    store = open_store(database)
    yield store
    await store.close()


@pytest.fixture
def operator(database: str, tmp_path: Path) -> Operator:
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {"HOME": str(tmp_path), "PATH": path, "BSO_DATABASE_URL": database, "BSO_STATE_DIR": str(tmp_path / "state")}
    return Operator(folder=tmp_path, database_url=database, environment=inherited | own)


async def recorded_in(store: SqlStore) -> dict[str, list[RecordedEvent]]:
    return {job_id: [stored.recorded for stored in await history(store, job_id)] for job_id in JOBS}


async def stopped(worker: WorkerProcess) -> None:
    """Wait until a worker says that it takes no commands because a backup was restored."""
    await asyncio.to_thread(worker.until, lambda: "bso restored" in worker.reasons().get("database", ""))
    assert worker.page("livez")[0] == 200


@pytest.mark.slow
async def test_workers_stop_when_a_backup_is_restored_and_go_on_after_the_commands_of_the_page(
    operator: Operator, store: SqlStore, ask: Queue, amqp_url: str, start_worker: StartWorker
) -> None:
    workers = [start_worker(database_url=operator.database_url, relay_age_s=1.0) for _ in range(2)]
    for worker in workers:
        await asyncio.to_thread(worker.ready)
    trainings, consumer, follows = Trainings(ask=ask), Consumer(), asyncio.Event()
    following = asyncio.create_task(consumer.follow(amqp_url, follows))
    await follows.wait()
    ask.is_patient = True
    for job_id in JOBS:
        await register(ask, job_id)
    async with trainings.going_on():
        await trainings.progress()
        await operator.succeeds("mariadb-dump --single-transaction bso >bso.sql")
        await trainings.progress()
        before = await recorded_in(store)
        await operator.succeeds("mariadb bso <bso.sql")
        for worker in workers:
            await stopped(worker)
        await stopped(start_worker(database_url=operator.database_url).started())
        restored = await recorded_in(store)
        for job_id in JOBS:
            assert 0 < len(restored[job_id]) < len(before[job_id])
            assert restored[job_id] == before[job_id][: len(restored[job_id])], "nothing was written after the restore"
        await operator.succeeds("bso migrate")
        said = await operator.succeeds("bso restored")
        assert f"{len(JOBS)} jobs with {sum(map(len, restored.values()))} events" in said
        for worker in workers:
            await asyncio.to_thread(worker.ready)
            assert worker.process.poll() is None, "the same process as before"
            assert worker.lines("log_epoch")
        acknowledged_before = len(trainings.acknowledged)
        await trainings.progress()
    epoch = await _epoch(store)
    assert f"epoch {epoch} " in said
    now = await recorded_in(store)
    for job_id in JOBS:
        assert await audit(store, job_id)
        known = len(restored[job_id])
        assert now[job_id][:known] == restored[job_id]
        assert {event.log_epoch for event in now[job_id][:known]} == {FIRST_EPOCH}
        assert {event.log_epoch for event in now[job_id][known:]} == {epoch}
    recorded = {event.command_id for events in now.values() for event in events}
    after = trainings.acknowledged[acknowledged_before:]
    assert after
    assert set(after) <= recorded, "an acknowledged command is lost"
    expected = {job_id: [published(event) for event in events] for job_id, events in now.items()}
    await eventually_async(lambda: following.done() or all(consumer.log(job_id) == expected[job_id] for job_id in JOBS))
    assert not following.done(), following.exception()
    following.cancel()
    new = {(job_id, seq) for job_id, log_epoch, seq in consumer.seen if log_epoch == epoch}
    assert any((job_id, FIRST_EPOCH, seq) in consumer.seen for job_id, seq in new), "seqs were given again"
    assert sum(worker.metric("bso_dead_letters_total") for worker in workers) == 0


@pytest.mark.slow
async def test_a_job_whose_tables_do_not_fit_its_log_is_named_and_keeps_workers_stopped_until_it_is_mended(
    operator: Operator, store: SqlStore, ask: Queue, start_worker: StartWorker, mariadb_server: MariaDB
) -> None:
    worker = await asyncio.to_thread(start_worker(database_url=operator.database_url).ready)
    trainings = Trainings(ask=ask)
    for job_id in JOBS:
        await register(ask, job_id)
    async with trainings.going_on():
        await trainings.progress(30)
    await operator.succeeds("mariadb-dump --single-transaction bso >bso.sql")
    backed_up = await store.log_epochs.current()
    await eventually_async(lambda: _is_another(store, backed_up), what="a look after the backup")
    await operator.succeeds("mariadb bso <bso.sql")
    await stopped(worker)
    mariadb_server.execute("UPDATE bso.job SET last_seq = last_seq + 3 WHERE job_id = 'digits-nightly'")
    refused = await operator.types("bso restored")
    assert refused.returncode == 1
    assert "→ bso replay rebuild digits-nightly --yes" in refused.stdout
    assert "1 of them not sound" in refused.stdout
    await stopped(worker)
    assert await _epoch(store) == FIRST_EPOCH
    shown = json.loads(operator.run("bso restored --json").stdout)
    assert (shown["log_epoch"], shown["jobs"]) == (None, len(JOBS))
    assert [one["remedy"] for one in shown["unsound"]] == ["bso replay rebuild digits-nightly --yes"]
    await operator.succeeds("bso replay rebuild digits-nightly --yes")
    await operator.succeeds("bso restored")
    await asyncio.to_thread(worker.ready)
    assert await _epoch(store) > FIRST_EPOCH
    more = Trainings(ask=ask)
    async with more.going_on():
        await more.progress(30)
    for job_id in JOBS:
        assert await audit(store, job_id)


def test_the_page_has_no_command_that_is_not_run_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [command for command in typed() if f'("{command}")' not in source] == []


async def _epoch(store: SqlStore) -> int:
    epoch = await store.log_epochs.current()
    assert epoch is not None
    return epoch.number


async def _is_another(store: SqlStore, known: LogEpoch | None) -> bool:
    return await store.log_epochs.current() != known
