"""What several ranks consume together: energies add up, the time is that of the slowest."""

from __future__ import annotations

from collections.abc import Sequence

from bso_client.meter import Meter
from bso_client.training.consumption import Consumption


class PooledMeter:
    """This rank's meter, and the consumption of all ranks as of their last exchange.

    Between two exchanges the other ranks are taken to consume in proportion to this one, as they did so far.
    """

    def __init__(self, own: Meter, *, before: Consumption, size: int) -> None:
        self.own = own
        self._before = before
        self._size = size
        self._pooled = Consumption()
        self._own_then = Consumption()

    @property
    def is_running(self) -> bool:
        """Whether a window is open."""
        return self.own.is_running

    @property
    def consumed(self) -> Consumption:
        """The consumption of all ranks, up to this rank's last closed window."""
        own, then, pooled = self.own.consumed, self._own_then, self._pooled
        total = pooled.plus(time_s=own.time_s - then.time_s, energy_j=self._energy_since(own, then, pooled))
        return self._before.plus(time_s=total.time_s, energy_j=total.energy_j)

    def start(self) -> None:
        """Open a window; without effect if one is open."""
        self.own.start()

    def stop(self) -> Consumption:
        """Close the window, if one is open; the consumption of all ranks."""
        self.own.stop()
        return self.consumed

    def pool(self, of_ranks: Sequence[Consumption]) -> None:
        """Take what all ranks have consumed, each up to its last closed window, as they say when they meet."""
        energies = [each.energy_j for each in of_ranks]
        known = [energy_j for energy_j in energies if energy_j is not None]
        self._pooled = Consumption(
            time_s=max(each.time_s for each in of_ranks),
            energy_j=sum(known) if len(known) == len(energies) else None,
        )
        self._own_then = self.own.consumed

    def _energy_since(self, own: Consumption, then: Consumption, pooled: Consumption) -> float | None:
        if own.energy_j is None or then.energy_j is None or pooled.energy_j is None:
            return None
        proportion = pooled.energy_j / then.energy_j if then.energy_j > 0 else float(self._size)
        return (own.energy_j - then.energy_j) * proportion
