"""Which power limit is the best of those that were measured. Rules: they read and write nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bso.domain.commands import PowerMeasurement
from bso.domain.power_sweep import cost_of_sample
from bso_client.errors import InvalidSetting

DEFAULT_ETA_KNOB = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitChoice:
    """A power limit [W], for each GPU, and why it is the best, in a sentence."""

    power_limit_w: float
    reason: str


class Selection(Protocol):
    """Chooses among power limits. An object of one's own fits."""

    def select(self, measurements: Sequence[PowerMeasurement], *, eta_knob: float, max_power_w: float) -> LimitChoice:
        """Choose one of the measured limits.

        ``measurements`` is not empty: per limit of each GPU [W], average power [W] and throughput [samples/s] of all
        GPUs together. ``eta_knob`` is the job's, ``max_power_w`` [W] that of all GPUs together.
        """
        ...


class Cost:
    """The limit at which a sample costs least: (eta * average power + (1 - eta) * max power) / throughput [J/sample].

    This minimises the job's own cost, eta * energy + (1 - eta) * max_power * time, for a given number of samples
    (Zeus, NSDI '23, section 4.2). ``eta_knob``: from 0 (time) to 1 (energy); None: the job's own, 0.5 without a job.
    Raises InvalidSetting.
    """

    def __init__(self, eta_knob: float | None = None) -> None:
        if eta_knob is not None and not 0 <= eta_knob <= 1:
            raise InvalidSetting(f"eta_knob must be from 0 (time alone) to 1 (energy alone), got {eta_knob!r}")
        self.eta_knob = eta_knob

    def select(self, measurements: Sequence[PowerMeasurement], *, eta_knob: float, max_power_w: float) -> LimitChoice:
        """Choose the cheapest limit."""
        eta = eta_knob if self.eta_knob is None else self.eta_knob

        def price(measured: PowerMeasurement) -> float:
            return cost_of_sample(measured, eta_knob=eta, max_power_w=max_power_w)

        best = _least(measurements, price)
        return _choice(best, f"a sample costs least at it ({price(best):.4g} J, eta_knob {eta:g})")


class Energy:
    """The limit at which a sample takes the least energy [J/sample], however long the training takes."""

    def select(self, measurements: Sequence[PowerMeasurement], *, eta_knob: float, max_power_w: float) -> LimitChoice:
        """Choose the limit of least energy."""
        best = _least(measurements, joules_per_sample)
        return _choice(best, f"a sample takes the least energy at it ({joules_per_sample(best):.4g} J)")


class Time:
    """The limit of the largest throughput [samples/s]; among equal ones the lowest.

    Between limits that are nearly as fast, the noise of measurements decides.
    """

    def select(self, measurements: Sequence[PowerMeasurement], *, eta_knob: float, max_power_w: float) -> LimitChoice:
        """Choose the fastest limit."""
        best = _least(measurements, lambda measured: -measured.samples_per_s)
        return _choice(best, f"training is fastest at it ({best.samples_per_s:.4g} samples/s)")


class MaxSlowdown:
    """The lowest limit at which training takes at most ``factor`` times as long as at the highest one measured.

    ``factor`` 1.1 allows 10 % more time. Raises InvalidSetting below 1.
    """

    def __init__(self, factor: float) -> None:
        if not factor >= 1:
            raise InvalidSetting(f"factor must be 1 or more (1.1 allows 10 % more time), got {factor!r}")
        self.factor = factor

    def select(self, measurements: Sequence[PowerMeasurement], *, eta_knob: float, max_power_w: float) -> LimitChoice:
        """Choose the lowest limit that is fast enough."""
        highest = max(measurements, key=lambda measured: measured.power_limit_w)
        enough = highest.samples_per_s / self.factor
        best = min(
            (measured for measured in measurements if measured.samples_per_s >= enough),
            key=lambda measured: measured.power_limit_w,
        )
        slowdown = highest.samples_per_s / best.samples_per_s
        return _choice(best, f"it is the lowest that slows training down by at most {self.factor:g} ({slowdown:.4g})")


def joules_per_sample(measured: PowerMeasurement) -> float:
    """Energy [J] per sample under one limit."""
    return measured.average_power_w / measured.samples_per_s


def _least(measurements: Sequence[PowerMeasurement], price: Callable[[PowerMeasurement], float]) -> PowerMeasurement:
    """The measurement of the least price, the one of the lower limit among equals."""
    return min(measurements, key=lambda measured: (price(measured), measured.power_limit_w))


def _choice(best: PowerMeasurement, why: str) -> LimitChoice:
    return LimitChoice(power_limit_w=best.power_limit_w, reason=f"{best.power_limit_w:g} W: {why}")
