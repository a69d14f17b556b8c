"""Probing: how trainings measure what an epoch would cost with other batch sizes, and by how much they err.

Between two epochs a training makes a few steps with another batch size, as far as all that probing has taken stays
within the job's ``probing_budget``, a share of the time that the training has taken. Probes share the factor of their
run, an error that is common to those of a trial, and have one each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.commands import EpochCostProbe
from bso.domain.randomness import seed_from, standard_normal
from bso.simulator.problem import EpochPrice

_OF_STEPS = 0.02
"""The standard deviation of ln cost that a training finds among its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """``steps`` for each batch size; the standard deviations of ln cost per epoch, of what all have in ``common``."""

    steps: int = 30
    common: float = 0.05
    own: float = 0.05

    def took(self, batch_size: int, epoch: EpochPrice, *, samples: int) -> EpochPrice:
        """What the steps with a batch size take whose epochs of so many ``samples`` take this."""
        return epoch.scaled(self.steps * batch_size / samples)

    def own_probe(self, batch_size: int, epoch: EpochPrice) -> EpochCostProbe:
        """What a trial says of its own batch size, with which it compares others: its epochs."""
        return EpochCostProbe(
            batch_size=batch_size, time_s=epoch.time_s, energy_j=epoch.energy_j, variance=_OF_STEPS**2
        )

    def probe(self, seed: int, trial_number: int, batch_size: int, epoch: EpochPrice) -> EpochCostProbe:
        """What a trial measures of a batch size of whose epochs one takes this."""
        common = self.common * standard_normal(seed_from(f"{seed}/probes"), trial_number, 0)
        own = self.own * standard_normal(seed_from(f"{seed}/probes"), trial_number, batch_size)
        measured = epoch.scaled(math.exp(common + own))
        return EpochCostProbe(
            batch_size=batch_size, time_s=measured.time_s, energy_j=measured.energy_j, variance=_OF_STEPS**2
        )
