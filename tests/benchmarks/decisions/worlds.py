"""What is simulated: a world is a truth, a noise and a default."""

from collections.abc import Sequence
from dataclasses import dataclass

from bso.simulator.truths import Family, Start

QUIET = ""
NOISES = {
    "no noise": QUIET,
    "runs 0.1": "run:0.1",
    "runs 0.3": "run:0.3",
    "runs 0.5": "run:0.5",
    "spikes, 1 of 10, x3": "spikes:0.1x3",
    "epochs 0.3": "epoch:0.3",
}
"""By the name of their row."""
STEP = "epoch-cost:x1.5@31"
"""A lasting step, which noise must not hide: from recurrence 31 on an epoch costs half as much again."""
STEP_NOISES = {"step x1.5, no noise": QUIET, "step x1.5, runs 0.1": "run:0.1", "step x1.5, runs 0.3": "run:0.3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWorld:
    """Jobs with truths of one family, one noise, and the default in one place. ``drift`` as ``--drift`` takes it."""

    family: Family
    noise: str
    start: Start
    drift: str = ""

    @property
    def name(self) -> str:
        """Its truth and its default."""
        return f"{self.family.value}, default {self.start.value}"


def worlds_with(noise: str, *, drift: str = "", families: Sequence[Family] = tuple(Family)) -> tuple[MadeWorld, ...]:
    """All worlds with this noise."""
    return tuple(
        MadeWorld(family=family, noise=noise, start=start, drift=drift) for family in families for start in Start
    )
