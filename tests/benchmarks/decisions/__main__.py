"""How well the policies decide in a noisy world: simulates, and writes a page of results with a picture.

    python -m tests.benchmarks.decisions [--for choosing] [--jobs 100] [--traces 40] [--out build/decisions]

Takes about half an hour on two cores that do nothing else. Measured traces are simulated where BSO_TRACES names them.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bso.domain.job_spec import CURVE
from bso.simulator import read_problems
from bso.simulator.spreading import spread
from bso.simulator.truths import Family
from tests.benchmarks.decisions.jobs import JobFigures, job_figures
from tests.benchmarks.decisions.report import POLICIES, Jobs, Results, write
from tests.benchmarks.decisions.seeds import PURPOSES, MixedSeeds, seeds_for
from tests.benchmarks.decisions.traces import on_traces
from tests.benchmarks.decisions.worlds import NOISES, STEP, STEP_NOISES, MadeWorld, worlds_with
from tests.benchmarks.figures import Figure
from tests.benchmarks.judging import Judging

JOBS = 100
TRACE_SEEDS = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and write the page."""
    options = _parsed(arguments)
    try:
        seeds = seeds_for(options.purpose, count=options.jobs, first=options.first_seed)
        trace_seeds = seeds_for(options.purpose, count=options.traces, first=options.first_seed)
    except MixedSeeds as error:
        sys.stderr.write(f"decisions: {error}\n")
        return 2
    began = time.monotonic()
    made = {noise: worlds_with(text) for noise, text in NOISES.items()}
    steps = {name: worlds_with(text, drift=STEP, families=[Family.VALLEY]) for name, text in STEP_NOISES.items()}
    results = Results(
        purpose=options.purpose,
        seeds=seeds,
        noises=tuple(made),
        jobs=_simulated(made, POLICIES, seeds, options.processes),
        steps=_simulated(steps, POLICIES[:2], seeds, options.processes),
        traces=_on_traces(trace_seeds, options.processes),
    )
    path = write(results, options.out)
    _say(f"{path}: written after {(time.monotonic() - began) / 60:.1f} minutes")
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.decisions", description="How well policies decide in a noisy world."
    )
    parser.add_argument(
        "--for", dest="purpose", choices=PURPOSES, default="reporting", help="whose seeds to take (reporting)"
    )
    parser.add_argument("--first-seed", type=int, help="the first of them (the first of that pool)")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs in each world ({JOBS})")
    parser.add_argument("--traces", type=int, default=TRACE_SEEDS, help=f"seeds on each trace ({TRACE_SEEDS})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    parser.add_argument("--out", type=Path, default=Path("build/decisions"), help="where to write (build/decisions)")
    return parser.parse_args(arguments)


def _simulated(
    rows: dict[str, tuple[MadeWorld, ...]], policies: Sequence[str], seeds: Sequence[int], processes: int
) -> Jobs:
    found: dict[tuple[str, str], Sequence[JobFigures]] = {}
    for name, worlds in rows.items():
        for policy in policies:
            calls: list[Callable[[], JobFigures]] = [
                partial(job_figures, world, policy, seed) for world in worlds for seed in seeds
            ]
            began = time.monotonic()
            found[name, policy] = spread(calls, processes=processes, on_done=lambda _: None)
            _say(f"{name}, {policy}: {len(calls)} jobs in {time.monotonic() - began:.0f} s")
    return found


def _on_traces(seeds: Sequence[int], processes: int) -> Sequence[Figure]:
    folder = os.environ.get("BSO_TRACES")
    if not folder:
        _say("BSO_TRACES names no folder with traces: only made worlds are simulated")
        return ()
    judging = Judging(seeds=seeds, say=_say, processes=processes)
    on_traces(judging, read_problems(Path(folder)), CURVE)
    return judging.found


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


if __name__ == "__main__":
    sys.exit(main())
