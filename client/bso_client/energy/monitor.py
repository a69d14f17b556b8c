"""What the client needs of an energy monitor."""

from __future__ import annotations

from typing import Any, Protocol


class Measured(Protocol):
    """What was measured between the beginning and the end of a window."""

    @property
    def time(self) -> float:
        """Seconds, between the same instants as the energy."""
        ...

    @property
    def total_energy(self) -> float:
        """Joules, of all devices together. NaN or a negative number: the window could not be measured."""
        ...


class Monitor(Protocol):
    """Measures time [s] and energy [J] between two calls. Windows of different keys may overlap.

    bso_client.EnergyMonitor is one, zeus.monitor.ZeusMonitor fits as it is, and so does an object of one's own.
    """

    def begin_window(self, key: str, /) -> Any:
        """Begin to measure under this key."""
        ...

    def end_window(self, key: str, /) -> Measured:
        """End the window of this key, and say what was measured."""
        ...
