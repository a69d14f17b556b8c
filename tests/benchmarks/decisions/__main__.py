"""How well the policies decide: simulates, and writes a page of results with pictures.

    python -m tests.benchmarks.decisions [--probes] [--for choosing] [--jobs 100] [--traces 20] [--out build/decisions]
    python -m tests.benchmarks.decisions --only moved probed [--probes] [--for choosing] [--jobs 100] [--traces 20]

Takes about half an hour on two cores that do nothing else, and half as long again with ``--probes``, which also
simulates trainings that probe epoch costs. Nearly all of it is spent in the decisions of ``curve``, one for each epoch.
Measured traces are simulated where BSO_TRACES names them. The row of steps has only
three worlds, with 10 / 3 times the jobs in each of them. ``--only`` simulates some parts alone, and prints their
tables.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from bso.policies.curve.memory import NAME as CURVE
from bso.simulator import read_problems
from bso.simulator.process_pool import spread
from bso.simulator.truths import Family
from tests.benchmarks.decisions.group_report import sections_of
from tests.benchmarks.decisions.groups import Group, Kind, made_groups, measured_groups, probing_groups
from tests.benchmarks.decisions.jobs import JobFigures, job_figures
from tests.benchmarks.decisions.probed import PROBED
from tests.benchmarks.decisions.regrets import GroupRegrets, group_regrets, regrets_of_job, true_waste_of_job
from tests.benchmarks.decisions.report import POLICIES, Jobs, Results, write
from tests.benchmarks.decisions.seeds import PURPOSES, MixedSeeds, seeds_for
from tests.benchmarks.decisions.traces import on_traces
from tests.benchmarks.decisions.worlds import NOISES, STEP, STEP_NOISES, MadeWorld, worlds_with
from tests.benchmarks.figures import Figure
from tests.benchmarks.judging import Judging
from tests.benchmarks.printing import table_of

_Job = TypeVar("_Job")
JOBS = 100
TRACE_SEEDS = 20
_TRACES = "traces"
MORE = 10 / 3
"""So many times the jobs in worlds of which a row has only three: with 100 jobs in others at least 1000 jobs a row."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, and write the page."""
    options = _parsed(arguments)
    try:
        seeds = seeds_for(options.purpose, count=options.jobs, first=options.first_seed)
        more_seeds = seeds_for(options.purpose, count=math.ceil(MORE * options.jobs), first=options.first_seed)
        trace_seeds = seeds_for(options.purpose, count=options.traces, first=options.first_seed)
    except MixedSeeds as error:
        sys.stderr.write(f"decisions: {error}\n")
        return 2
    has_probes = options.probes or Kind.PROBED.name.lower() in (options.only or ())
    if options.only:
        kinds = [kind for kind in Kind if kind.name.lower() in options.only]
        found = _groups(seeds, trace_seeds, options.processes, kinds=kinds, has_probes=has_probes)
        parts = list(sections_of(found)) if kinds else []
        if _TRACES in options.only:
            parts.append(table_of(_on_traces(trace_seeds, options.processes, has_probes=has_probes)))
        sys.stdout.write("\n\n".join(parts) + "\n")
        return 0
    began = time.monotonic()
    made = {noise: worlds_with(text) for noise, text in NOISES.items()}
    steps = {name: worlds_with(text, drift=STEP, families=[Family.VALLEY]) for name, text in STEP_NOISES.items()}
    results = Results(
        purpose=options.purpose,
        seeds=seeds,
        noises=tuple(made),
        jobs=_simulated("truths", made, POLICIES, seeds, options.processes),
        steps=_simulated("valleys", steps, [CURVE], more_seeds, options.processes),
        groups=_groups(seeds, trace_seeds, options.processes, has_probes=has_probes),
        traces=_on_traces(trace_seeds, options.processes, has_probes=has_probes),
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
    parser.add_argument(
        "--traces",
        type=int,
        default=TRACE_SEEDS,
        help=f"seeds on each trace, and of what is compared job by job where costs do not vary ({TRACE_SEEDS})",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=[*(kind.name.lower() for kind in Kind), _TRACES],
        help="simulate these parts and print them",
    )
    parser.add_argument("--probes", action="store_true", help="also simulate trainings that probe epoch costs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes (one per core)")
    parser.add_argument("--out", type=Path, default=Path("build/decisions"), help="where to write (build/decisions)")
    return parser.parse_args(arguments)


def _simulated(
    what: str, rows: dict[str, tuple[MadeWorld, ...]], policies: Sequence[str], seeds: Sequence[int], processes: int
) -> Jobs:
    """The jobs of all rows; ``what`` names them to who waits."""
    found: dict[tuple[str, str], Sequence[JobFigures]] = {}
    for name, worlds in rows.items():
        for policy in policies:
            calls: list[Callable[[], JobFigures]] = [
                partial(job_figures, world, policy, seed) for world in worlds for seed in seeds
            ]
            found[name, policy] = _spread(f"{what}, {name}, {policy}", calls, processes)
    return found


def _spread(name: str, calls: Sequence[Callable[[], _Job]], processes: int) -> Sequence[_Job]:
    began = time.monotonic()
    found = spread(calls, processes=processes, on_done=lambda _: None)
    _say(f"{name}: {len(calls)} jobs in {time.monotonic() - began:.0f} s")
    return found


def _groups(
    seeds: Sequence[int],
    trace_seeds: Sequence[int],
    processes: int,
    *,
    has_probes: bool,
    kinds: Sequence[Kind] = tuple(Kind),
) -> tuple[GroupRegrets, ...]:
    folder = os.environ.get("BSO_TRACES")
    measured = measured_groups(Path(folder)) if folder else ()
    made = (*made_groups(), *(probing_groups() if has_probes else ()))
    left_out = () if has_probes else PROBED
    return (
        *(_wasted(group.without(left_out), trace_seeds, processes) for group in measured if group.kind in kinds),
        *(
            # Differences with the same luck vary little.
            _wasted(
                group.without(left_out),
                trace_seeds if group.kind in (Kind.QUIET, Kind.PROBED) else seeds,
                processes,
            )
            for group in made
            if group.kind in kinds
        ),
    )


def _wasted(group: Group, seeds: Sequence[int], processes: int) -> GroupRegrets:
    found: dict[str, Sequence[tuple[float, ...]]] = {}
    wasted_by_job = true_waste_of_job if group.kind is Kind.PROBED else regrets_of_job
    for policy in group.policies:
        calls: list[Callable[[], tuple[float, ...]]] = [
            partial(wasted_by_job, world, policy, seed, group.recurrences) for world in group.worlds for seed in seeds
        ]
        found[policy] = _spread(f"{group.kind.value}, {group.source}, {policy}", calls, processes)
    return group_regrets(group, found)


def _on_traces(seeds: Sequence[int], processes: int, *, has_probes: bool) -> Sequence[Figure]:
    folder = os.environ.get("BSO_TRACES")
    if not folder:
        _say("BSO_TRACES names no folder with traces: only made worlds are simulated")
        return ()
    judging = Judging(seeds=seeds, say=_say, processes=processes)
    for probing in (None, *(PROBED.values() if has_probes else ())):
        on_traces(judging, read_problems(Path(folder)), CURVE, probing=probing)
    return judging.found


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


if __name__ == "__main__":
    sys.exit(main())
