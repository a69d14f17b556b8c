"""The cost of a training run, as the Zeus paper defines it (NSDI '23, eq. 2), without what profiling adds to it.

Profiling power limits slows a training down and changes its energy.
"""

from __future__ import annotations

from dataclasses import dataclass


def cost_of(*, energy_j: float, time_s: float, eta_knob: float, max_power_w: float) -> float:
    """Energy and time as one cost [J]: ``eta * energy + (1 - eta) * max_power * time``.

    ``eta_knob`` 1 counts energy alone, 0 counts time alone. ``max_power_w`` is that of all devices together.
    """
    return eta_knob * energy_j + (1.0 - eta_knob) * max_power_w * time_s


_NOTHING_LEFT = 1e-9  # of all progress: what remains of the difference of two equal sums of floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """How far a training has come: ``epoch`` (a float), seconds and joules, all since its beginning."""

    epoch: float
    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The part of a training that passed while power limits were profiled: progress in epochs, seconds, joules."""

    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0

    def plus(self, before: Totals, after: Totals) -> Profiled:
        """This and what lies between two reports."""
        return Profiled(
            epochs=self.epochs + (after.epoch - before.epoch),
            time_s=self.time_s + (after.time_s - before.time_s),
            energy_j=self.energy_j + (after.energy_j - before.energy_j),
        )


def is_all_profiled(epoch: float, profiled: Profiled) -> bool:
    """Whether power limits were profiled in all of a training: its cost without is not known yet."""
    return profiled.epochs > 0 and epoch - profiled.epochs <= _NOTHING_LEFT * epoch


def undistorted(reached: Totals, profiled: Profiled) -> Totals:
    """What the training would have taken without profiling: its profiled epochs count like the mean of the others.

    While there are no others the totals stay as they are.
    """
    if not profiled.epochs or is_all_profiled(reached.epoch, profiled):
        return reached
    share = reached.epoch / (reached.epoch - profiled.epochs)
    return Totals(
        epoch=reached.epoch,
        time_s=max(0.0, reached.time_s - profiled.time_s) * share,
        energy_j=max(0.0, reached.energy_j - profiled.energy_j) * share,
    )
