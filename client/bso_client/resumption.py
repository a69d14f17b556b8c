"""A training that goes on from a checkpoint: what the optimizer had heard of it before, and what is counted now."""

from __future__ import annotations

from dataclasses import dataclass

from bso.domain.profiling import Totals
from bso.domain.replies import LeaseRenewed
from bso_client.meter import Consumption


@dataclass(slots=True, kw_only=True)
class Resumption:
    """What the optimizer knows of a trial, and how far the training's own time [s] and energy [J] are from that.

    The first pass through an epoch counts. Epochs that are trained again, because the checkpoint lies behind what was
    told, are neither told nor counted: each total continues from ``known``.
    """

    known: Totals
    ahead_s: float
    ahead_j: float

    def knows(self, epoch: float) -> bool:
        """Whether the optimizer has heard of this epoch."""
        return epoch <= self.known.epoch

    def trained_again(self, time_s: float, energy_j: float | None) -> None:
        """The training has consumed so much of its own when it reached an epoch that is known."""
        self.ahead_s = self.known.time_s - time_s
        self.ahead_j = self.known.energy_j - (energy_j or 0.0)

    def counted(self, own: Consumption) -> Consumption:
        """What is to be told for the training's own consumption."""
        energy_j = None if own.energy_j is None else max(self.known.energy_j, own.energy_j + self.ahead_j)
        return Consumption(time_s=max(self.known.time_s, own.time_s + self.ahead_s), energy_j=energy_j)


def resumption_of(reply: LeaseRenewed, saved: Consumption) -> Resumption:
    """The beginning: totals go on as saved, but never from less than what is known."""
    saved_j = saved.energy_j or 0.0
    known = Totals(
        epoch=reply.epoch,
        time_s=saved.time_s if reply.time_s is None else reply.time_s,
        energy_j=saved_j if reply.energy_j is None else reply.energy_j,
    )
    ahead_s, ahead_j = max(0.0, known.time_s - saved.time_s), max(0.0, known.energy_j - saved_j)
    return Resumption(known=known, ahead_s=ahead_s, ahead_j=ahead_j)
