"""A policy on measured traces: that what is gained in noise is not lost without it."""

from collections.abc import Sequence

from bso.simulator import BatchSizeProblem, Probing
from tests.benchmarks.judging import Judging, poor_share, regrets_of, values_of
from tests.benchmarks.resampling import Resampled

RECURRENCES = 100
HORIZONS = (10, 20, 100)


def on_traces(
    judging: Judging, problems: Sequence[BatchSizeProblem], policy: str, *, probing: Probing | None = None
) -> None:
    """Regrets, their 99th percentile, and how often a choice is poor in the end."""
    results = judging.simulate(problems, policy, recurrences=RECURRENCES, probing=probing)
    resampled = Resampled([problem.workload for problem in problems], len(judging.seeds))
    case = f"{len(problems)} problems, {len(judging.seeds)} seeds; {policy}"
    if probing is not None:
        case += f", probes that err by {probing.own:.0%} each and in common"
    for horizon in HORIZONS:
        judging.add(case, f"regret@{horizon}", "runs", resampled.mean(regrets_of(results, horizon)))
    judging.add(case, "regret@100, 99 % of runs", "runs", resampled.percentile(regrets_of(results, 100), 0.99))
    poor = values_of(results, lambda run: 100 * poor_share(run))
    judging.add(case, "2 % worse than best, last fifth", "%", resampled.mean(poor))
