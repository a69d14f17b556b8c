"""The cost of a training run, as the Zeus paper defines it (NSDI '23, eq. 2)."""

from __future__ import annotations


def cost_of(*, energy_j: float, time_s: float, eta_knob: float, max_power_w: float) -> float:
    """Energy and time as one cost [J]: ``eta * energy + (1 - eta) * max_power * time``.

    ``eta_knob`` 1 counts energy alone, 0 counts time alone. ``max_power_w`` is that of all devices together.
    """
    return eta_knob * energy_j + (1.0 - eta_knob) * max_power_w * time_s
