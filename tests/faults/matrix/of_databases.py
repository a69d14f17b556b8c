"""Faults of the database: killed, frozen, full, far away, refusing, slow, with another clock."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from bso.domain.commands import ReportEpoch
from bso_client.driver import REPORT_TIMEOUT_S
from tests.faults.matrix.pair import on_a_small_disk, with_another_clock
from tests.faults.matrix.scenario import UNTOUCHED, scenario
from tests.faults.matrix.stage import Stage
from tests.integration.workers.processes import WorkerProcess
from tests.servers import eventually_async
from tools.private_servers import MariaDB, PrivateServer


@scenario("SIGKILL of the database, which is away for 4 s", needs_private=True, is_smoke=True, strikes_for_s=3.0)
async def database_killed(stage: Stage) -> None:
    await stage.begin()
    await stage.suffer(_server(stage).kill, 4.0, _server(stage).start)


@scenario("the database is stopped in order and started again, three times", needs_private=True, strikes_for_s=0.3)
async def database_restarted(stage: Stage) -> None:
    server = _server(stage)
    await stage.begin()
    async with stage.fault():
        for _ in range(3):
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await stage.progress(20)


@scenario("SIGSTOP of the database for 15 s", needs_private=True, strikes_for_s=14.0)
async def database_frozen(stage: Stage) -> None:
    await stage.begin()
    await stage.suffer(_server(stage).freeze, 15.0, _server(stage).thaw)


@scenario("the database is read-only for 10 s", needs_private=True, databases=["MariaDB"], strikes_for_s=9.0)
async def database_read_only(stage: Stage) -> None:
    server = _mariadb(stage)
    await stage.begin(database_url=server.create_login(stage.database_url))
    read_only = partial(server.execute, "SET GLOBAL read_only = 1")
    await stage.suffer(read_only, 10.0, partial(server.execute, "SET GLOBAL read_only = 0"))


@scenario(
    "the database has no connection left for 15 s; the workers' are cut",
    needs_private=True,
    databases=["MariaDB"],
    promises={"recovery_s": 5.0},
    strikes_for_s=14.0,
)
async def max_connections(stage: Stage) -> None:
    server = _mariadb(stage)
    url = server.create_login(stage.database_url)
    await stage.begin(database_url=url)
    async with stage.fault(), _crowd(stage, server) as owner:
        await eventually_async(partial(_is_crowded_out, owner, _login(url)), what="a database full of others")
        newcomer = stage.worker(database_url=url)
        await stage.pause(15.0)
        assert newcomer.process.poll() is None, newcomer.text()


@scenario(
    "a load balancer in front of the database loses its backend for 10 s",
    promises={"recovery_s": 5.0},
    strikes_for_s=9.0,
)
async def load_balancer_without_backend(stage: Stage) -> None:
    proxy = await stage.proxied(stage.database_url)
    await stage.begin(database_url=proxy.url)
    async with stage.fault():
        proxy.cut()
        stage.worker(database_url=proxy.url)
        await stage.pause(10.0)
        proxy.restore()


@scenario("sessions of the database are ended at random, forty times", promises=UNTOUCHED)
async def database_connections_killed(stage: Stage) -> None:
    await stage.begin()
    ended = 0
    async with stage.fault():
        for _ in range(40):
            await stage.pause(0.1, 0.4)
            ended += await end_a_session(stage)
    assert ended >= 20, f"only {ended} sessions were ended: the fault did not strike"


@scenario(
    "the workers' login of the database is locked, then dropped, each for 5 s",
    needs_private=True,
    databases=["MariaDB"],
    strikes_for_s=4.0,
)
async def database_login_removed(stage: Stage) -> None:
    server = _mariadb(stage)
    url = server.create_login(stage.database_url)
    name, database = _login(url), stage.database_url.rpartition("/")[2]
    password = sa.make_url(url).password
    await stage.begin(database_url=url)
    async with stage.fault():
        server.execute(f"ALTER USER {name} ACCOUNT LOCK; KILL USER {name}")
        await stage.pause(5.0)
        server.execute(f"ALTER USER {name} ACCOUNT UNLOCK")
        await stage.progress(50)
        server.execute(f"REVOKE ALL ON {database}.* FROM {name}; KILL USER {name}")
        await stage.pause(5.0)
        server.execute(f"GRANT ALL ON {database}.* TO {name}")
        await stage.progress(50)
        server.execute(f"DROP USER {name}; KILL USER {name}")
        await stage.pause(5.0)
        server.execute(f"CREATE USER {name} IDENTIFIED BY '{password}'; GRANT ALL ON {database}.* TO {name}")


@scenario("each write to disk of the database takes 0.3 s more, for 15 s", needs_private=True, strikes_for_s=0.3)
async def slow_disk(stage: Stage) -> None:
    server = _server(stage)
    await stage.begin()
    async with stage.fault():
        with _slow_writes(server):
            await stage.pause(15.0)


@scenario(
    "the disk of the database is full for 15 s",
    needs_private=True,
    variant=on_a_small_disk,
    databases=["MariaDB"],
    strikes_for_s=5.0,
)
async def disk_full(stage: Stage) -> None:
    server = _mariadb(stage)
    await stage.begin()
    filling = server.folder / "filling"
    async with stage.fault():
        with filling.open("wb") as file, suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(4096))
        await stage.pause(15.0)
        filling.unlink()
        await asyncio.to_thread(server.start)  # a server may die of it: service managers start it again


@scenario(
    "the clock of the database goes 2 h ahead, 2 h behind, and back",
    needs_private=True,
    variant=with_another_clock,
    databases=["MariaDB"],
)
async def clock_of_the_database(stage: Stage) -> None:
    server = _mariadb(stage)
    await stage.begin()
    async with stage.fault():
        for hours in (2, -2, 0):
            (server.folder / "clock").write_text(f"{hours:+d}h")
            shift_s = float(server.execute("SELECT UNIX_TIMESTAMP()")) - time.time()
            assert abs(shift_s - 3600.0 * hours) < 60.0, f"the clock of the database is {shift_s:.0f} s ahead"
            await stage.progress(150)


@scenario(
    "a backup is restored under running workers; what was acknowledged since it was made is forgotten",
    needs_private=True,
    databases=["MariaDB"],
)
async def database_restored(stage: Stage) -> None:
    server = _mariadb(stage)
    name = stage.database_url.rpartition("/")[2]
    await stage.begin()
    since_s = stage.now_s()
    dump = await asyncio.to_thread(server.dump, name)
    await stage.progress(150)
    async with stage.fault():
        stage.sender.expect_a_restore()  # tables are loaded one after the other, the epoch of the log among them
        await asyncio.to_thread(server.load, name, dump)
        for worker in stage.living:
            await asyncio.to_thread(worker.until, partial(_asks_for_restored, worker))
        stage.forget(since_s=since_s)
        done = await asyncio.to_thread(stage.command, "restored")
        assert done.returncode == 0, done.stderr


@scenario(
    "300 ms to the database and back, with 64 and then 256 commands under way",
    strikes_for_s=0.6,
    promises={"ms_per_decision_at_64": 25.0, "ms_per_decision_at_256": 6.7, "slowest_report_s": REPORT_TIMEOUT_S},
)
async def database_far(stage: Stage) -> None:
    proxy = await stage.proxied(stage.database_url)
    await stage.begin(database_url=proxy.url, lanes=1, trainings=1, pulses=0)
    proxy.delay(0.15)
    async with stage.fault():
        for at_once in (64, 256):
            await stage.crowd(at_once - len(stage.lanes))
            await stage.pause(6.0)
            decided = await stage.decided_within(10.0)
            stage.figures[f"ms_per_decision_at_{at_once}"] = 10_000.0 / max(1, decided)
        proxy.restore()
    stage.figures["slowest_report_s"] = stage.ledger.slowest_s(
        since_s=stage.struck_s, until_s=stage.now_s(), is_others=True, kind=ReportEpoch
    )


def _asks_for_restored(worker: WorkerProcess) -> bool:
    return "bso restored" in str(worker.reasons())


def _server(stage: Stage) -> PrivateServer:
    assert stage.pair.database is not None
    return stage.pair.database


def _mariadb(stage: Stage) -> MariaDB:
    assert isinstance(stage.pair.database, MariaDB)
    return stage.pair.database


def _login(url: str) -> str:
    return url.partition("//")[2].partition(":")[0]


@asynccontextmanager
async def _crowd(stage: Stage, server: MariaDB) -> AsyncIterator[AsyncConnection]:
    """Sessions of somebody else, as many as the server takes; an owner's session to do something about it."""
    guests = create_async_engine(server.create_login(stage.database_url), pool_size=100)
    owners = create_async_engine(stage.database_url, isolation_level="AUTOCOMMIT")
    held: list[AsyncConnection] = []

    async def crowd() -> None:
        while True:
            try:
                held.append(await guests.connect())
            except DBAPIError:
                await asyncio.sleep(0.02)  # takes whatever place becomes free

    async with owners.connect() as owner:
        sessions = (await owner.execute(sa.text("SELECT COUNT(*) FROM information_schema.processlist"))).scalar_one()
        await owner.execute(sa.text(f"SET GLOBAL max_connections = {max(10, sessions + 2)}"))
        crowding = asyncio.create_task(crowd())
        try:
            await eventually_async(lambda: len(held) >= 2, what="other sessions")
            yield owner
        finally:
            crowding.cancel()
            await asyncio.wait([crowding])
            await owner.execute(sa.text("SET GLOBAL max_connections = 600"))
            for connection in held:
                await connection.close()
    await guests.dispose()
    await owners.dispose()


async def _is_crowded_out(owner: AsyncConnection, login: str) -> bool:
    """End the sessions of a login; True once others have taken all their places."""
    await owner.execute(sa.text(f"KILL USER {login}"))
    await asyncio.sleep(0.2)
    listing = sa.text("SELECT COUNT(*) FROM information_schema.processlist WHERE user = :login")
    return not (await owner.execute(listing, {"login": login})).scalar_one()


async def end_a_session(stage: Stage) -> bool:
    """End one session of the database, whosever it is; whether there was one."""
    engine = stage.store.engine
    name = stage.database_url.rpartition("/")[2]
    is_postgresql = engine.dialect.name == "postgresql"
    listing = (
        f"SELECT pid FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"
        if is_postgresql
        else f"SELECT id FROM information_schema.processlist WHERE db = '{name}' AND id <> CONNECTION_ID()"
    )
    async with engine.connect() as connection:
        found = sorted((await connection.execute(sa.text(listing))).scalars())
        if not found:
            return False
        victim = stage.rng.choice(found)
        ending = f"SELECT pg_terminate_backend({victim})" if is_postgresql else f"KILL {victim}"
        try:
            ended = await connection.execute(sa.text(ending))
            return not is_postgresql or bool(ended.scalar())
        except DBAPIError:
            return False  # it has gone meanwhile


@contextmanager
def _slow_writes(server: PrivateServer) -> Iterator[None]:
    """Let strace hold up every fsync of the server."""
    strace = shutil.which("strace")
    assert strace is not None, "strace is not installed; Debian has it in the package strace"
    calls = "fsync,fdatasync,sync_file_range"
    targets = [word for pid in server.processes for word in ("-p", str(pid))]
    command = [
        strace,
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={calls}:delay_enter=300000",
    ]
    tracer = subprocess.Popen([*command, *targets])
    try:
        yield
        assert tracer.poll() is None, f"strace ended with {tracer.returncode}"
    finally:
        tracer.send_signal(signal.SIGINT)  # it lets go of what it traces
        tracer.wait()
