"""A report on its whole way, from its bytes in a client to the bytes of its reply; beside the peer, and the floors."""

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from bso.policies import DEFAULT
from bso.schema.codec import decode_reply
from tests.benchmarks import floors
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.journeys import Driven, Journeys
from tests.benchmarks.laboratory import Laboratory, pid_of, run
from tests.benchmarks.lanes import Lane, check_judged, open_lanes
from tests.benchmarks.rows import Row, row_of, tell
from tests.benchmarks.zeus.peer import ZeusJourneys

JOBS = 20
CALLS = {1: 150, 8: 800, 64: 2560, 256: 5120}
"""Calls per repetition, by how many are under way at once."""
LEAST_CALLS = 60
"""Clocks of processes tick every 10 ms."""
WORKERS = (1, 2)
ABOUT: Mapping[str, Row] = {"bso": {"jobs": JOBS, "policy": DEFAULT}, "zeus": {"jobs": JOBS}}

Path = tuple[str, int]
"""What decides, and how many processes of it."""

Drive = Callable[[int, int], Awaitable[Driven]]


def measure(laboratory: Laboratory) -> list[Figure]:
    """Decisions per second, latencies and CPU time per decision, by how many commands are under way.

    The paths take turns: one and two workers, Zeus' server, an echo over the same queue (``floor_echo``), and a durable
    transaction of one row with the bare driver (``floor_transaction``).
    """
    figures = Figures(benchmark="rpc")
    run(_measure(laboratory, figures))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    async with AsyncExitStack() as stack:
        paths = await _paths(laboratory, stack)
        for in_flight, usual in CALLS.items():
            calls = max(LEAST_CALLS, laboratory.effort.of(usual))
            found = await laboratory.in_turns({path: partial(drive, in_flight, calls) for path, drive in paths.items()})
            for (name, workers), driven in found.items():
                case = f"{in_flight} in flight, {name}{f', {workers} workers' if workers > 1 else ''}"
                zeus = [] if name == "zeus" else found.get(("zeus", 1), [])
                tell(figures, case, driven, peer="zeus", peers=zeus)
                row = row_of(name, driven, in_flight=in_flight, workers=workers)
                laboratory.rows.append({**row, **ABOUT.get(name, {})})


async def _paths(laboratory: Laboratory, stack: AsyncExitStack) -> dict[Path, Drive]:
    paths: dict[Path, Drive] = {}
    lanes: list[Lane] = []
    for workers in WORKERS:
        crew = await asyncio.to_thread(laboratory.crew, workers)
        journeys = await stack.enter_async_context(crew.route.opened())
        lanes = await open_lanes(journeys.ask, max(CALLS), jobs=JOBS)
        paths["bso", workers] = partial(decided, journeys, lanes)
    paths["floor_echo", 1] = partial(_echoed, await floors.echo(laboratory, stack), lanes)
    paths["floor_transaction", 0] = await floors.transactions(laboratory, stack, most=max(CALLS))
    try:
        paths["zeus", 1] = await zeus_server(laboratory, stack)
    except (OSError, subprocess.SubprocessError, AssertionError) as error:
        laboratory.say(f"  Zeus' server is not measured: {error}")
    return paths


async def decided(journeys: Journeys, lanes: Sequence[Lane], in_flight: int, calls: int) -> Driven:
    """So many reports on the first lanes, each decided, none of them the last of its trial."""
    driven = await journeys.drive(lanes[:in_flight], calls)
    check_judged([decode_reply(reply) for reply in driven.replies])
    return driven


async def _echoed(journeys: Journeys, lanes: Sequence[Lane], in_flight: int, calls: int) -> Driven:
    return await journeys.drive(lanes[:in_flight], calls)


async def zeus_server(laboratory: Laboratory, stack: AsyncExitStack) -> Drive:
    """Zeus' server, with as many trials as are ever under way. Raises SubprocessError, OSError without its packages."""
    server, port = await asyncio.to_thread(laboratory.start_zeus)
    pids = {"worker": [server.process.pid], "database": [pid_of(laboratory.mariadb)]}
    journeys = ZeusJourneys(port, pids)
    stack.push_async_callback(journeys.close)
    await journeys.open(max(CALLS), jobs=JOBS)
    return journeys.drive
