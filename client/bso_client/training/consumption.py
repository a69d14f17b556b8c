"""What a training has consumed, and how one that goes on from a checkpoint continues its totals."""

from __future__ import annotations

from dataclasses import dataclass

from bso.domain.profiling import Totals
from bso.domain.replies import LeaseRenewed
from bso.domain.trial import EpochReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What a training has consumed so far. ``energy_j`` is None once a part of it could not be measured."""

    time_s: float = 0.0
    energy_j: float | None = 0.0

    def plus(self, *, time_s: float, energy_j: float | None) -> Consumption:
        """This and what one more window measured."""
        total = None if self.energy_j is None or energy_j is None else self.energy_j + energy_j
        return Consumption(time_s=self.time_s + time_s, energy_j=total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What the optimizer knows of a resumed trial, and how far the training's own totals [s], [J] are from that.

    The first pass through an epoch counts. Epochs that are trained again, because the checkpoint lies behind what was
    reported, are neither reported nor counted: each total continues from ``known``.
    """

    known: Totals
    ahead_s: float
    ahead_j: float

    def knows(self, epoch: float) -> bool:
        """Whether this epoch was reported before the training was resumed."""
        return epoch <= self.known.epoch

    def after(self, report: EpochReport) -> Resumption:
        """The resumption after an evaluation: what was consumed for epochs that are known does not count."""
        if not self.knows(report.epoch):
            return self
        return Resumption(
            known=self.known,
            ahead_s=self.known.time_s - report.time_s,
            ahead_j=self.known.energy_j - (report.energy_j or 0.0),
        )

    def counted(self, own: Consumption) -> Consumption:
        """What is to be reported for the training's own consumption."""
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
