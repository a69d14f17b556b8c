"""The floors of a decision: an echo over the same queue, a transaction of one row on the same database or disk."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import asyncmy
from sqlalchemy import make_url

from tests.benchmarks.journeys import Driven, Journeys, Route
from tests.benchmarks.laboratory import Laboratory, pid_of
from tests.benchmarks.machine import Stopwatch

_ROW = "INSERT INTO floor (text) VALUES ('{}')".format("x" * 400)


async def echo(laboratory: Laboratory, stack: AsyncExitStack) -> Journeys:
    """The way to a process that takes commands as a worker does and sends them back."""
    amqp_url = laboratory.rabbitmq.create_vhost()
    program = await asyncio.to_thread(laboratory.start_program, "tests.benchmarks.echo", amqp_url=amqp_url)
    pids = {"worker": [program.process.pid], "broker": [pid_of(laboratory.rabbitmq)]}
    return await stack.enter_async_context(Route(amqp_url=amqp_url, pids=pids).opened())


async def transactions(
    laboratory: Laboratory, stack: AsyncExitStack, *, most: int
) -> Callable[[int, int], Awaitable[Driven]]:
    """One row and a commit that is on the disk, by the bare driver, on a connection for each that is in flight."""
    url = make_url(laboratory.mariadb.create_database())
    login: dict[str, Any] = {
        "host": url.host,
        "port": url.port or 3306,
        "user": url.username,
        "password": url.password or "",
    }
    pool = await asyncmy.create_pool(minsize=0, maxsize=most, db=url.database, **login)
    stack.push_async_callback(pool.wait_closed)
    stack.callback(pool.close)
    async with pool.acquire() as connection, connection.cursor() as cursor:
        await cursor.execute("CREATE TABLE floor (number BIGINT AUTO_INCREMENT PRIMARY KEY, text VARCHAR(400))")
    return partial(_committed, pool, {"database": [pid_of(laboratory.mariadb)]})


async def _committed(pool: Any, pids: dict[str, list[int]], in_flight: int, calls: int) -> Driven:
    async def one_lane() -> list[float]:
        latencies_s = []
        async with pool.acquire() as connection, connection.cursor() as cursor:
            for _ in range(max(1, calls // in_flight)):
                began_s = perf_counter()
                await cursor.execute(_ROW)
                await connection.commit()
                latencies_s.append(perf_counter() - began_s)
        return latencies_s

    with Stopwatch(**pids) as watch:
        found = await asyncio.gather(*(one_lane() for _ in range(in_flight)))
    latencies_s = tuple(one for lane in found for one in lane)
    return Driven(elapsed=watch.include_others(), latencies_s=latencies_s, replies=(b"",) * len(latencies_s))


def fsyncs(folder: Path, calls: int) -> Driven:
    """One row and a commit that is on the disk, by the bare driver of SQLite; one after the other."""
    with closing(sqlite3.connect(folder / "floor.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS floor (number INTEGER PRIMARY KEY, text TEXT)")
        latencies_s = []
        with Stopwatch() as watch:
            for _ in range(calls):
                began_s = perf_counter()
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_ROW)
                connection.execute("COMMIT")
                latencies_s.append(perf_counter() - began_s)
    return Driven(elapsed=watch.elapsed, latencies_s=tuple(latencies_s), replies=(b"",) * calls)
