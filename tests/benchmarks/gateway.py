"""Reports over Zeus' wire: its own server, the gateway in front of a worker, and the gateway over a SQLite file."""

import asyncio
import subprocess
from contextlib import AsyncExitStack
from functools import partial

from bso_broker.connection import login_of
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.laboratory import Laboratory, pid_of, run
from tests.benchmarks.rows import row_of, tell
from tests.benchmarks.rpc import JOBS, LEAST_CALLS, Drive, zeus_server
from tests.benchmarks.zeus.peer import ZeusJourneys

CALLS = {1: 150, 8: 800, 64: 2560}


def measure(laboratory: Laboratory) -> list[Figure]:
    """Reports per second, latencies and CPU time per report, by how many are under way; the paths take turns."""
    figures = Figures(benchmark="gateway")
    run(_measure(laboratory, figures))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    async with AsyncExitStack() as stack:
        paths = await _paths(laboratory, stack)
        for in_flight, usual in CALLS.items():
            calls = max(LEAST_CALLS, laboratory.effort.of(usual))
            found = await laboratory.in_turns({path: partial(drive, in_flight, calls) for path, drive in paths.items()})
            for name, driven in found.items():
                peers = [] if name == "zeus" else found.get("zeus", [])
                tell(figures, f"{in_flight} in flight, {name}", driven, peer="zeus", peers=peers)
                row = row_of(name, driven, in_flight=in_flight, workers=1)
                laboratory.rows.append({**row, "case": "over Zeus' wire", "jobs": JOBS})


async def _paths(laboratory: Laboratory, stack: AsyncExitStack) -> dict[str, Drive]:
    paths = {
        "gateway": await _gateway(laboratory, stack),
        "gateway_sqlite": await _gateway_over_a_file(laboratory, stack),
    }
    try:
        paths["zeus"] = await zeus_server(laboratory, stack)
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        laboratory.say(f"  Zeus' server is not measured: {error}")
    return paths


async def _gateway(laboratory: Laboratory, stack: AsyncExitStack) -> Drive:
    amqp_url = laboratory.rabbitmq.create_vhost()
    database_url = await asyncio.to_thread(laboratory.new_database)
    worker = laboratory.start_worker(amqp_url=amqp_url, database_url=database_url, gateways=login_of(amqp_url))
    gateway = await asyncio.to_thread(laboratory.start_gateway, amqp_url)
    pids = {
        "worker": [(await asyncio.to_thread(worker.ready)).process.pid, gateway.process.pid],
        "broker": [pid_of(laboratory.rabbitmq)],
        "database": [pid_of(laboratory.mariadb)],
    }
    return await _opened(ZeusJourneys(gateway.lines("started")[0]["port"], pids), stack)


async def _gateway_over_a_file(laboratory: Laboratory, stack: AsyncExitStack) -> Drive:
    gateway = await asyncio.to_thread(laboratory.start_gateway, f"sqlite:///{laboratory.folder / 'gateway.sqlite'}")
    return await _opened(ZeusJourneys(gateway.lines("started")[0]["port"], {"worker": [gateway.process.pid]}), stack)


async def _opened(journeys: ZeusJourneys, stack: AsyncExitStack) -> Drive:
    stack.push_async_callback(journeys.close)
    await journeys.open(max(CALLS), jobs=JOBS)
    return journeys.drive
