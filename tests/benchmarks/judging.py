"""Simulating policies, and collecting the figures that judge them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bso.simulator import BatchSizeProblem, Run
from bso.simulator.study import Case, CaseRuns, StudySettings, study
from bso.simulator.world import World
from tests.benchmarks.figures import Figure
from tests.benchmarks.resampling import Interval, Values, table_over

POOR = 1.02
"""A batch size is a poor choice if its mean cost is more than so many times the best one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """With which seeds, in how many processes; ``found`` grows."""

    seeds: Sequence[int]
    say: Callable[[str], None]
    processes: int = 1
    found: list[Figure] = field(default_factory=list)

    def simulate(
        self, problems: Sequence[BatchSizeProblem], policy: str, *, seeds: Sequence[int] = (), **settings: Any
    ) -> tuple[CaseRuns, ...]:
        """Runs of every problem with every seed; further arguments are fields of ``StudySettings``."""
        cases = [Case(name=problem.name, problem=problem) for problem in problems]
        chosen = StudySettings(spec_overrides={"policy": policy}, **settings)
        return study(cases, seeds or self.seeds, chosen, processes=self.processes)

    def add(
        self, case: str, quantity: str, unit: str, interval: Interval, *, ratio: Interval | None = None, to: str = ""
    ) -> None:
        """Add a figure: what was found between the ends of its interval, and its ratio to something."""
        self.found.append(
            Figure(
                benchmark="policies",
                case=case,
                quantity=quantity,
                unit=unit,
                values=tuple(round(value, 6) for value in interval),  # a difference of equal sums is 0
                peer=to if ratio else "",
                ratios=ratio or (),
            )
        )


def values_of(results: Sequence[CaseRuns], quantity: Callable[[Run], float]) -> Values:
    """A quantity of every run."""
    return table_over([[quantity(run) for run in result.runs] for result in results])


def regrets_of(results: Sequence[CaseRuns], horizon: int) -> Values:
    """Runs wasted in the first recurrences."""
    return values_of(results, lambda run: run.regret(horizon))


def poor_share(run: Run) -> float:
    """Of the last fifth of the recurrences, how many begin with a batch size over 2 % worse than the best one.

    For jobs that do not change.
    """
    world = World(problem=run.problem, seed=run.seed, eta_knob=run.eta_knob)
    most = POOR * world.expected(world.best_batch_size(1), 1).cost
    chosen: dict[int, int] = {}
    for trial in sorted(run.trials, key=lambda trial: trial.trial_number):
        chosen.setdefault(trial.recurrence, trial.batch_size)
    last = range(run.recurrences * 4 // 5 + 1, run.recurrences + 1)
    return sum(world.expected(chosen[number], 1).cost > most for number in last) / len(last)
