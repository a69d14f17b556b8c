"""A training whose speed and power follow from the power limit of a GPU that is not there; its own clock and meter."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.gpus import FakeGpus


@dataclass
class Measured:
    time: float
    total_energy: float


def step_time_s(limit_w: float) -> float:
    """Seconds per training step under a limit: less power is slower, and the slower the less."""
    return 0.1 * (1 + (200 / limit_w) ** 3)


def power_w(limit_w: float) -> float:
    """The power drawn: a little less than the limit allows."""
    return limit_w - 5.0


def step_cost_j(limit_w: float, *, eta_knob: float, max_power_w: float) -> float:
    """What a step costs under a limit, as the paper has it."""
    return (eta_knob * power_w(limit_w) + (1 - eta_knob) * max_power_w) * step_time_s(limit_w)


class SimulatedTraining:
    """Trains on GPUs of a fake machine, and measures as a ZeusMonitor does. Time [s] and energy [J] are exact."""

    def __init__(
        self,
        gpus: FakeGpus,
        *indices: int,
        step_time_s: Callable[[float], float] = step_time_s,
        power_w: Callable[[float], float] = power_w,
    ) -> None:
        self._step_time_s, self._power_w = step_time_s, power_w
        self.limits_w: list[float] = []
        self.open: dict[str, tuple[float, float]] = {}
        self.cancelled = 0
        self.gpu_indices = list(indices or (0,))
        self._gpus = gpus
        self._time_s = 0.0
        self._energy_j = 0.0

    def step(self) -> None:
        """One training step under the limit that is set now; the slowest GPU sets the pace."""
        limits_w = [float(self._gpus.device(index)["limit_w"]) for index in self.gpu_indices]
        self.limits_w.append(min(limits_w))
        time_s = max(map(self._step_time_s, limits_w))
        self._time_s += time_s
        self._energy_j += time_s * sum(map(self._power_w, limits_w))

    def begin_window(self, key: str, /) -> None:
        assert key not in self.open, "a window of this key is open"
        self.open[key] = (self._time_s, self._energy_j)

    def end_window(self, key: str, /, cancel: bool = False) -> Any:
        time_s, energy_j = self.open.pop(key)
        self.cancelled += cancel
        return Measured(time=self._time_s - time_s, total_energy=self._energy_j - energy_j)
