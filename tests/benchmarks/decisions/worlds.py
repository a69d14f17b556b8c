"""What is simulated: a world is a truth or a measured problem, a noise, a default, and what changes on the way."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bso.domain.randomness import seed_from, uniform
from bso.simulator import NO_CHANGES, BatchSizeProblem, Changes, Move, NewVersion
from bso.simulator.truths import OTHER_GPU, TARGET, Family, Start, made_problem

QUIET = ""
NO_NOISE, SPIKES = "no noise", "spikes, 1 of 10, x3"
NOISES = {
    NO_NOISE: QUIET,
    "runs 0.1": "run:0.1",
    "runs 0.3": "run:0.3",
    "runs 0.5": "run:0.5",
    SPIKES: "spikes:0.1x3",
    "epochs 0.3": "epoch:0.3",
}
"""By the name of their row."""
CHANGED = 31
"""The first recurrence after a change."""
STEP = f"epoch-cost:x1.5@{CHANGED}"
"""A lasting step, which noise must not hide: from recurrence 31 on an epoch costs half as much again."""
STEP_NOISES = {"step x1.5, no noise": QUIET, "step x1.5, runs 0.1": "run:0.1", "step x1.5, runs 0.3": "run:0.3"}
_LEAST_NOTCH, _MOST_NOTCH = 0.1, 0.7


def unchanged(seed: int) -> Changes:
    """Nothing changes."""
    return NO_CHANGES


def moved(seed: int) -> Changes:
    """Thirty recurrences run on another kind of GPU."""
    return Changes(move=Move(gpu=OTHER_GPU, start=CHANGED))


def renewed(seed: int) -> Changes:
    """After 30 recurrences the target metric is another one near 0.9, drawn from the seed: from 0.80 to 0.95.

    ln of the distance to a perfect 1 grows or shrinks, with the same probability, by 0.1 to 0.7.
    """
    draws = seed_from(f"target {seed}")
    notch = _LEAST_NOTCH + (_MOST_NOTCH - _LEAST_NOTCH) * uniform(draws, 0, 1)
    factor = math.exp(notch if uniform(draws, 0, 2) < 0.5 else -notch)
    return Changes(new_version=NewVersion(target_metric=round(1.0 - (1.0 - TARGET) * factor, 4), start=CHANGED))


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWorld:
    """Jobs with truths of one family, one noise, and the default in one place.

    ``drift`` as ``--drift`` takes it; ``changes`` by the seed of the job.
    """

    family: Family
    noise: str
    start: Start
    drift: str = ""
    changes: Callable[[int], Changes] = unchanged

    @property
    def name(self) -> str:
        """Its truth and its default."""
        return f"{self.family.value}, default {self.start.value}"

    @property
    def cluster(self) -> str:
        """All made worlds have truths of their own for each seed, so only seeds are drawn again."""
        return "made"

    def problem(self, seed: int) -> BatchSizeProblem:
        """The problem of the job with this seed."""
        return made_problem(self.family, self.start, seed, changes=self.changes(seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWorld:
    """Jobs with one measured problem, and what is called so."""

    name: str
    measured: BatchSizeProblem

    @property
    def cluster(self) -> str:
        """Problems of one dataset share their runs, so they are drawn together."""
        return self.measured.workload.dataset

    def problem(self, seed: int) -> BatchSizeProblem:
        """The same for every seed."""
        return self.measured


World = MadeWorld | MeasuredWorld


def worlds_with(
    noise: str,
    *,
    drift: str = "",
    families: Sequence[Family] = tuple(Family),
    changes: Callable[[int], Changes] = unchanged,
) -> tuple[MadeWorld, ...]:
    """All made worlds with this noise."""
    return tuple(
        MadeWorld(family=family, noise=noise, start=start, drift=drift, changes=changes)
        for family in families
        for start in Start
    )
