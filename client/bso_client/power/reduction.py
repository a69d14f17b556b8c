"""From the windows of all ranks to one profile. Rules: values in, values out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bso.domain.commands import PowerMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one rank measured under one limit of each of its GPUs [W]; its GPUs' energy [J] together, and time [s].

    ``samples`` are those that this rank trained on. ``is_valid``: the limit was set, and the meter told something.
    """

    limit_w: float
    time_s: float
    energy_j: float
    samples: float
    is_valid: bool = True

    @property
    def tells_something(self) -> bool:
        """Whether power and throughput follow from it. A meter that is too slow for the window tells 0 J."""
        numbers = (self.time_s, self.energy_j, self.samples)
        return self.is_valid and all(math.isfinite(number) and number > 0 for number in numbers)


def reduced(windows_by_rank: Sequence[Sequence[Window]]) -> tuple[PowerMeasurement, ...]:
    """One measurement per limit that every rank measured: power is summed, and the slowest rank's time counts.

    Ranks train in step, so the throughput of all is all their samples over that time.
    """
    together = zip(*windows_by_rank, strict=False)  # ranks measure the same limits in the same order
    return tuple(_measurement(windows) for windows in together if all(window.tells_something for window in windows))


def _measurement(windows: Sequence[Window]) -> PowerMeasurement:
    time_s = max(window.time_s for window in windows)
    return PowerMeasurement(
        power_limit_w=windows[0].limit_w,
        average_power_w=sum(window.energy_j / window.time_s for window in windows),
        samples_per_s=sum(window.samples for window in windows) / time_s,
    )
