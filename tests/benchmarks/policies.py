"""How well the policies choose, by simulation.

    BSO_TRACES=folder python -m tests.benchmarks.policies --seeds 40 --processes 4

Simulates the measured problems in the folder that BSO_TRACES names (docs/simulator.md says what it holds), as they are
and with drift, overlap and failures; then a made family of smooth cost curves, where a hill climber stands beside the
policies. Without BSO_TRACES only the family. Regret is given in runs: trainings with the best batch size. What a change
wastes is the regret less that of the same seeds without the change; it may be negative where runs fail, because the
oracle that regret is measured by pays a failed run to its end and a policy may stop it early. Here ``min`` and ``max``
of the table are the ends of the 95 % interval, by a bootstrap that draws workloads, then seeds; four workloads are few.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bso.domain.policies import own_policies
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from bso.simulator import BatchSizeProblem, Run, parse_drift, read_problems
from bso.simulator.study import CaseRuns
from bso.simulator.world import World
from tests.benchmarks import smooth_curves
from tests.benchmarks.figures import Figure
from tests.benchmarks.judging import Judging, poor_share, regrets_of, values_of
from tests.benchmarks.laboratory import Laboratory
from tests.benchmarks.printing import table_of
from tests.benchmarks.resampling import Resampled, Values

SEEDS = 8
"""Take about three minutes on one core that does nothing else."""
AT_ONCE = 8
FAILURES = 0.03
CHANGES = {
    "epochs x2.5 at 50": ("epochs:x2.5@50", ""),
    "epoch cost x2.5 at 50": ("epoch-cost:x2.5@50", ""),
    "epoch cost +1 % each time": ("epoch-cost:+1%", ""),
    "optimum moves 1 size up at 50": ("optimum:+1@50", ""),
    "optimum moves 1 size down at 50": ("optimum:-1@50", ""),
    "optimum moves 2 sizes up at 50": ("optimum:+2@50", ""),
    "optimum moves 2 sizes down at 50": ("optimum:-2@50", ""),
    "optimum is mirrored at 50": ("optimum@50", ""),
    "optimum is mirrored back at 50": ("optimum,optimum@50", "optimum"),
}
"""Drifts, each with the drift that it is compared with."""

QUANTITIES: Mapping[str, tuple[str, Callable[[Run], float]]] = {
    "regret@20": ("runs", lambda run: run.regret(20)),
    "regret@100": ("runs", lambda run: run.regret(100)),
    "cost over oracle@20": ("%", lambda run: 100 * run.cost_over_oracle(20)),
    "cost over oracle@100": ("%", lambda run: 100 * run.cost_over_oracle(100)),
    "2 % worse than best, last fifth": ("%", lambda run: 100 * poor_share(run)),
}


def measure(laboratory: Laboratory) -> list[Figure]:
    """Regrets of the policies, and what drift, overlap and failures add to them."""
    return judge(Judging(seeds=range(laboratory.effort.of(SEEDS)), say=laboratory.say))


def judge(judging: Judging) -> list[Figure]:
    """All figures."""
    if folder := os.environ.get("BSO_TRACES"):
        _on_traces(judging, read_problems(Path(folder)))
    else:
        judging.say("policies: BSO_TRACES names no folder with traces, so only made problems are simulated")
    smooth_curves.compare(judging)
    return judging.found


def _on_traces(judging: Judging, problems: Sequence[BatchSizeProblem]) -> None:
    judging.say(f"policies: {len(problems)} problems, {len(judging.seeds)} seeds")
    resampled = Resampled([problem.workload for problem in problems], len(judging.seeds))
    steady = {policy: judging.simulate(problems, policy, recurrences=100) for policy in own_policies()}
    for policy, results in steady.items():
        _judge_steady(judging, resampled, policy, results, steady[PRUNING_THOMPSON])
    for policy, results in steady.items():
        _judge_each(judging, policy, results, steady[PRUNING_THOMPSON])
    regrets = {policy: regrets_of(results, 100) for policy, results in steady.items()}
    del steady
    for policy in own_policies():
        _judge_changes(judging, resampled, problems, policy, regrets[policy])
    _judge_overlapping(judging, resampled, problems)


def _judge_steady(
    judging: Judging, resampled: Resampled, policy: str, results: Sequence[CaseRuns], paper: Sequence[CaseRuns]
) -> None:
    case = f"nothing drifts; {policy}"
    for quantity, (unit, of) in QUANTITIES.items():
        mine = values_of(results, of)
        ratio = resampled.ratio(mine, values_of(paper, of)) if results is not paper else None
        judging.add(case, quantity, unit, resampled.mean(mine), ratio=ratio, to=PRUNING_THOMPSON)
    judging.add(case, "regret@100, 99 % of runs", "runs", resampled.percentile(regrets_of(results, 100), 0.99))


def _judge_each(judging: Judging, policy: str, results: Sequence[CaseRuns], paper: Sequence[CaseRuns]) -> None:
    """The problems one by one."""
    for result, other in zip(results, paper, strict=True):
        resampled = Resampled([result.case.name], len(judging.seeds))
        mine = regrets_of([result], 100)
        ratio = resampled.ratio(mine, regrets_of([other], 100)) if result is not other else None
        judging.add(
            f"{result.case.name}; {policy}",
            "regret@100",
            "runs",
            resampled.mean(mine),
            ratio=ratio,
            to=PRUNING_THOMPSON,
        )


def _judge_changes(
    judging: Judging, resampled: Resampled, problems: Sequence[BatchSizeProblem], policy: str, steady: Values
) -> None:
    def regrets(text: str, failure_rate: float = 0.0) -> Values:
        drift = parse_drift(text)
        return regrets_of(
            judging.simulate(problems, policy, recurrences=100, drift=drift, failure_rate=failure_rate), 100
        )

    for name, (drift, unlike) in CHANGES.items():
        without = regrets(unlike) if unlike else steady
        _judge_wasted(judging, resampled, problems, f"{name}; {policy}", regrets(drift) - without)
    failing = f"{FAILURES:.0%} of runs fail; {policy}"
    _judge_wasted(judging, resampled, problems, failing, regrets("", FAILURES) - steady)


def _judge_wasted(
    judging: Judging, resampled: Resampled, problems: Sequence[BatchSizeProblem], case: str, wasted: Values
) -> None:
    judging.add(case, "wasted by it", "runs", resampled.mean(wasted))
    worst = int(wasted.mean(axis=1).argmax())
    on_worst = Resampled([problems[worst].name], len(judging.seeds)).mean(wasted[worst : worst + 1])
    judging.add(case, f"wasted, {problems[worst].name}, the worst", "runs", on_worst)


def _judge_overlapping(judging: Judging, resampled: Resampled, problems: Sequence[BatchSizeProblem]) -> None:
    costlier = [_default_over_best(problem) - 1.0 for problem in problems]
    floor = AT_ONCE * sum(costlier) / len(costlier)
    judging.add(f"{AT_ONCE} at once, the first all with the default", "regret", "runs", (floor, floor, floor))
    for policy in own_policies():
        results = judging.simulate(problems, policy, recurrences=50, overlap=AT_ONCE - 1)
        judging.add(f"{AT_ONCE} at once; {policy}", "regret@50", "runs", resampled.mean(regrets_of(results, 50)))


def _default_over_best(problem: BatchSizeProblem) -> float:
    world = World(problem=problem, seed=0, eta_knob=0.5)
    return world.expected(problem.default_batch_size, 1).cost / world.expected(world.best_batch_size(1), 1).cost


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.policies", description="How well policies choose."
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"simulate with so many seeds ({SEEDS})")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--processes", type=int, default=1, help="spread simulations over so many (1)")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    judging = Judging(seeds=seeds, processes=options.processes, say=_say)
    sys.stdout.write(f"{table_of(judge(judging))}\n")
    return 0


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


if __name__ == "__main__":
    sys.exit(main())
