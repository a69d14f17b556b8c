"""Trainings wasted, by recurrence, and what many jobs of a group say together."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from bso.policies.curve.memory import NAME as CURVE
from bso.simulator import parse_drift, parse_noise, simulate
from bso.simulator.world import World as Truth
from tests.benchmarks.decisions.groups import Group
from tests.benchmarks.decisions.known_noise import KNOWING, hardly_any_noise
from tests.benchmarks.decisions.probed import PROBED
from tests.benchmarks.decisions.rows import Cell, Worst
from tests.benchmarks.decisions.worlds import CHANGED, MadeWorld, World
from tests.benchmarks.resampling import Interval, Resampled, Values

_TAIL = 0.99


def regrets_of_job(world: World, policy: str, seed: int, recurrences: int) -> tuple[float, ...]:
    """Whole trainings wasted up to each recurrence by a simulated job."""
    noise, drift = (world.noise, world.drift) if isinstance(world, MadeWorld) else ("", "")
    with hardly_any_noise() if policy == KNOWING else nullcontext():
        run = simulate(
            world.problem(seed),
            {"policy": CURVE if policy == KNOWING or policy in PROBED else policy},
            recurrences=recurrences,
            seed=seed,
            noise=parse_noise(noise),
            drift=parse_drift(drift),
            probing=PROBED.get(policy),
        )
    return run.regrets


def true_waste_of_job(world: World, policy: str, seed: int, recurrences: int) -> tuple[float, ...]:
    """Trainings wasted up to each recurrence at true prices, the noise apart; what probing took is as it was paid."""
    problem, noise = world.problem(seed), parse_noise(world.noise if isinstance(world, MadeWorld) else "")
    probing = PROBED.get(policy)
    run = simulate(problem, {"policy": CURVE}, recurrences=recurrences, seed=seed, noise=noise, probing=probing)
    truth = Truth(problem=problem, seed=seed, eta_knob=0.5, noise=noise)
    wasted = [-1.0] * recurrences  # each needs one training with the best batch size
    for trial in run.trials:
        number = trial.recurrence
        spent = trial.epochs * truth.cost(truth.price(trial.batch_size, number), number)
        if probing is not None:
            spent += trial.cost - trial.judged_cost
        wasted[number - 1] += spent / truth.expected(truth.best_batch_size(number), number).cost
    return tuple(accumulate(wasted))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRegrets:
    """What the jobs of a group wasted: by policy, of shape (worlds, seeds, recurrences)."""

    group: Group
    wasted: Mapping[str, NDArray[np.float64]]

    @property
    def seeds(self) -> int:
        """How many jobs there are in each world."""
        return int(self.wasted[self.group.policies[0]].shape[1])

    def since_change(self, policy: str, until: int) -> Values:
        """Trainings wasted from recurrence 31 to this one."""
        return self.until(policy, until) - self.until(policy, CHANGED - 1)

    def until(self, policy: str, recurrence: int) -> Values:
        """Trainings wasted from the first recurrence to this one."""
        found: Values = self.wasted[policy][:, :, recurrence - 1]
        return found

    def mean(self, values: Values) -> Cell:
        """The mean of a value per world and job, its interval, and the worst world.

        Workloads are drawn again, then seeds; of made worlds only seeds.
        """
        low, mean, high = self._resampled().mean(values)
        worst = int(values.mean(axis=1).argmax())
        found = Worst(mean=float(values[worst].mean()), name=self.group.worlds[worst].name)
        return Cell(mean=mean, low=low, high=high, worst=(found,))

    def tail(self, values: Values) -> Interval:
        """What 99 % of the jobs do not exceed, between the ends of its interval."""
        return self._resampled().percentile(values, _TAIL)

    def since_change_by_recurrence(self, policy: str) -> NDArray[np.float64]:
        """The mean waste up to each recurrence, less that up to recurrence 30."""
        mean: NDArray[np.float64] = self.wasted[policy].mean(axis=(0, 1))
        found: NDArray[np.float64] = mean - mean[CHANGED - 2]
        return found

    def _resampled(self) -> Resampled:
        return Resampled([world.cluster for world in self.group.worlds], self.seeds)


def group_regrets(group: Group, found: Mapping[str, Sequence[tuple[float, ...]]]) -> GroupRegrets:
    """Jobs of each policy, worlds one after the other, each with all seeds."""
    shape = (len(group.worlds), -1, group.recurrences)
    return GroupRegrets(
        group=group, wasted={policy: np.array(jobs, dtype=np.float64).reshape(shape) for policy, jobs in found.items()}
    )
