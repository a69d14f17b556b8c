"""The engine: what one transaction costs beyond the statements in it, and beyond having them on the disk."""

from collections.abc import Sequence

from bso.domain.commands import Request
from bso.domain.replies import Reply
from bso.service.engine import Engine
from bso.storage import SqlStore
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.laboratory import Laboratory, run
from tests.benchmarks.lanes import Lane, batches, check_judged, open_lanes
from tests.benchmarks.machine import Elapsed, Stopwatch, fdatasync_s
from tests.benchmarks.recording import recorded
from tests.benchmarks.stores import Place, on_mariadb, on_sqlite

TRAININGS = 32
SIZES = {1: 100, 32: 20}
"""Batches per repetition, by the number of reports in each."""


def measure(laboratory: Laboratory) -> list[Figure]:
    """Reports per second and CPU time per report, in batches of 1 and of 32, each training a job of its own."""
    figures = Figures(benchmark="engine")
    run(_measure(laboratory, figures))
    return figures.found


async def _measure(laboratory: Laboratory, figures: Figures) -> None:
    for place in (await on_sqlite(laboratory, "engine"), await on_mariadb(laboratory)):
        store = place.open()
        try:
            await _measure_on(place, store, laboratory, figures)
        finally:
            await store.close()


async def _measure_on(place: Place, store: SqlStore, laboratory: Laboratory, figures: Figures) -> None:
    engine = Engine(store)
    lanes = await new_lanes(engine)
    for size, usual in SIZES.items():
        count = laboratory.effort.of(usual)
        await execute(engine, batches(lanes, size=size, count=5))
        through_engine, bare, synced_s = [], [], []
        for _ in range(laboratory.effort.repetitions):
            synced_s.append(fdatasync_s(laboratory.folder, times=100))
            through_engine.append(await timed(engine, batches(lanes, size=size, count=count), place))
            bare.append(await _replayed(place, store, engine, batches(lanes, size=size, count=count)))
        _report(figures, f"{place.name}, batches of {size}", size * count, count, through_engine, bare, synced_s)


async def new_lanes(engine: Engine, count: int = TRAININGS, *, jobs: int = TRAININGS) -> list[Lane]:
    """Running trials, spread over so many jobs."""

    async def ask(request: Request) -> Reply:
        (answer,) = await engine.execute([request])
        return answer.reply

    return await open_lanes(ask, count, jobs=jobs)


async def execute(engine: Engine, requests: Sequence[Sequence[Request]]) -> None:
    """Decide batch after batch."""
    for batch in requests:
        check_judged([answer.reply for answer in await engine.execute(batch)])


async def timed(engine: Engine, requests: Sequence[Sequence[Request]], place: Place) -> Elapsed:
    """What deciding them takes."""
    with Stopwatch(database=place.server_pids) as watch:
        await execute(engine, requests)
    return watch.elapsed


async def _replayed(place: Place, store: SqlStore, engine: Engine, requests: Sequence[Sequence[Request]]) -> Elapsed:
    """What the bare driver takes for the statements that the engine sends for these requests."""
    bare = place.copy()
    async with recorded(store) as statements:
        await execute(engine, requests)
    await bare.open()
    try:
        with Stopwatch(database=place.server_pids) as watch:
            await bare.replay(statements)
    finally:
        await bare.close()
    return watch.elapsed


def _report(  # noqa: PLR0917
    figures: Figures,
    case: str,
    decisions: int,
    commits: int,
    engine: Sequence[Elapsed],
    bare: Sequence[Elapsed],
    synced_s: Sequence[float],
) -> None:
    peer = "the same statements, bare driver"
    rates, bare_rates = ([decisions / one.wall_s for one in some] for some in (engine, bare))
    figures.add(case, "decisions", "1/s", rates, peer=peer, peer_values=bare_rates)
    cpu, bare_cpu = ([one.cpu_s / decisions * 1e6 for one in some] for some in (engine, bare))
    figures.add(case, "CPU per decision", "us", cpu, peer=peer, peer_values=bare_cpu)
    if engine[0].others_s["database"]:
        theirs = [one.others_s["database"] / decisions * 1e6 for one in engine]
        bare_theirs = [one.others_s["database"] / decisions * 1e6 for one in bare]
        figures.add(case, "database CPU per decision", "us", theirs, peer=peer, peer_values=bare_theirs)
    taken_ms = [one.wall_s / commits * 1e3 for one in engine]
    synced_ms = [one * 1e3 for one in synced_s]
    figures.add(case, "time per commit", "ms", taken_ms, peer="fdatasync of 4 KiB", peer_values=synced_ms)
