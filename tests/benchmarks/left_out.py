"""How well constants of the policy ``curve`` serve workloads and GPUs that they were not chosen on.

    BSO_TRACES=folder python -m tests.benchmarks.left_out --seeds 20 --processes 2

The constants in use and variants of them, one constant changed at a time, are simulated on the measured problems that
BSO_TRACES names. For each workload the variant is chosen that wastes least on the other workloads, and it is judged by
what it wastes on this one; likewise for each GPU. The table shows the regret of the constants in use on the same
problems and seeds beside that of the chosen ones. Where both are alike, the constants owe little to having been chosen
on what they are reported on. ``min`` and ``max`` are the ends of the 95 % interval, by a bootstrap that draws
workloads, then seeds, and takes what was chosen as given.
"""

import argparse
import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bso.policies.curve.hypotheses import EPOCHS_PRIOR
from bso.policies.curve.memory import NAME as CURVE
from bso.simulator import BatchSizeProblem, read_problems
from bso.simulator.traces import TRAIN_FILE
from tests.benchmarks.figures import Figure
from tests.benchmarks.judging import Judging, regrets_of
from tests.benchmarks.printing import table_of
from tests.benchmarks.resampling import Resampled, Values

SEEDS = 10
RECURRENCES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Constants that are not those in use: by module of bso.policies.curve and name; none: those in use."""

    name: str
    module: str = ""
    constants: Mapping[str, Any]


IN_USE = Variant(name="as they are", constants={})
VARIANTS = (
    IN_USE,
    *(
        Variant(name=f"{name.strip('_').lower()} {value:g}", module=module, constants={name: value})
        for module, name, values in (
            ("choices", "_LOOK_PACE", (0.05, 0.2)),
            ("choices", "_LOOK_GROWTH", (2.0, 3.0)),
            ("choices", "_LOOK_COST", (0.02, 0.1)),
            ("values", "HORIZON", (5, 20)),
            ("beliefs", "_USUAL_NOISE", (0.015, 0.06)),
            ("beliefs", "_NOISE_WEIGHT", (2.0, 8.0)),
        )
        for value in values
    ),
    *(
        Variant(
            name=f"{name} {value:g}",
            module="hypotheses",
            constants={"EPOCHS_PRIOR": replace(EPOCHS_PRIOR, **{name: value})},
        )
        for name, values in (
            ("slope", (0.1, 0.3)),
            ("curve_variance", (0.05, 0.2)),
            ("length_scale", (2.0, 4.0)),
        )
        for value in values
    ),
    Variant(name="nothing of its own", module="hypotheses", constants={"OWN_VARIANCES": (0.0,)}),
    Variant(name="much of its own", module="hypotheses", constants={"OWN_VARIANCES": (0.0, 0.02, 0.08)}),
)


@contextmanager
def applied(variant: Variant) -> Iterator[None]:
    """The policy with these constants."""
    if not variant.constants:
        yield
        return
    module = importlib.import_module(f"bso.policies.curve.{variant.module}")
    before = {name: getattr(module, name) for name in variant.constants}
    for name, value in variant.constants.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def regrets(problems: Sequence[BatchSizeProblem], seeds: Sequence[int], variant: Variant) -> Values:
    """Runs wasted by a variant: a row per problem, a column per seed."""
    with applied(variant):
        results = Judging(seeds=seeds, say=lambda _: None).simulate(problems, CURVE, recurrences=RECURRENCES)
    return regrets_of(results, RECURRENCES)


def chosen(table: Mapping[str, Values], rows: Sequence[int]) -> str:
    """The variant that wastes least on these problems; of equals, the first."""
    return min(table, key=lambda name: float(table[name][rows].mean()))


def judged(table: Mapping[str, Values], problems: Sequence[BatchSizeProblem]) -> list[Figure]:
    """What the constants waste that were chosen without each workload, and without each GPU, beside those in use."""
    kinds: tuple[tuple[str, Callable[[BatchSizeProblem], str]], ...] = (
        ("workload", lambda problem: problem.workload.dataset),
        ("GPU", lambda problem: problem.gpu),
    )
    grouped = [(kind, [of(problem) for problem in problems]) for kind, of in kinds]
    several = [(kind, groups) for kind, groups in grouped if len(set(groups)) > 1]
    return [figure for kind, groups in several for figure in _judged_by(kind, groups, table, problems)]


def _judged_by(
    kind: str, groups: Sequence[str], table: Mapping[str, Values], problems: Sequence[BatchSizeProblem]
) -> Iterator[Figure]:
    blind = table[IN_USE.name].copy()
    for left_out in sorted(set(groups)):
        inside = [row for row, group in enumerate(groups) if group == left_out]
        name = chosen(table, [row for row in range(len(groups)) if row not in inside])
        blind[inside] = table[name][inside]
        resampled = Resampled([problems[row].workload for row in inside], blind.shape[1])
        for case in dict.fromkeys((name, IN_USE.name)):
            yield _figure(f"new {kind} {left_out}; {case}", resampled.mean(table[case][inside]))
    resampled = Resampled([problem.workload for problem in problems], blind.shape[1])
    yield _figure(f"each {kind} new; chosen without it", resampled.mean(blind))
    yield _figure(f"each {kind}; {IN_USE.name}", resampled.mean(table[IN_USE.name]))


def _figure(case: str, interval: tuple[float, float, float]) -> Figure:
    return Figure(benchmark="left_out", case=case, quantity=f"regret@{RECURRENCES}", unit="runs", values=interval)


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.left_out",
        description="What constants of the policy curve waste on workloads and GPUs that they were not chosen on.",
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"simulate with so many seeds ({SEEDS})")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--processes", type=int, default=1, help="spread variants over so many (1)")
    options = parser.parse_args(arguments)
    folder = Path(os.environ.get("BSO_TRACES") or ".")
    if not (folder / TRAIN_FILE).is_file():
        parser.error(f"BSO_TRACES names no folder with traces: {folder} has no {TRAIN_FILE} (see docs/simulator.md)")
    problems = read_problems(folder)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    sys.stderr.write(f"left_out: {len(VARIANTS)} variants, {len(problems)} problems, {len(seeds)} seeds\n")
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=spawning) as pool:
        tables = pool.map(partial(regrets, problems, seeds), VARIANTS)
        table: dict[str, Values] = {}
        for variant, values in zip(VARIANTS, tables, strict=True):
            sys.stderr.write(f"left_out: {variant.name}: {values.mean():.2f} runs\n")
            table[variant.name] = values
    sys.stdout.write(f"{table_of(judged(table, problems))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
