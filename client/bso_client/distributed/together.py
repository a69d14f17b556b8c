"""A training of several ranks: they join, rank 0 begins the trial, all of them train it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from bso.domain.errors import BsoError
from bso.domain.hardware import HardwareKind
from bso.domain.trial import Outcome
from bso_client.distributed.carried import CarriedError, carried, raise_first
from bso_client.distributed.counting import counting
from bso_client.distributed.exchange import Exchange
from bso_client.distributed.joining import (
    Joining,
    check_joined,
    counted_devices,
    hardware_of_all,
    is_energy_assumed,
)
from bso_client.distributed.leader import Leader, LeaderWatch, make_ready, this_process
from bso_client.distributed.pool import PooledMeter
from bso_client.distributed.shared_run import Place, SharedRun
from bso_client.distributed.shares import Share
from bso_client.distributed.torch_ranks import TorchRanks
from bso_client.energy.monitor import Monitor
from bso_client.errors import RankLost
from bso_client.failures import described
from bso_client.meter import Consumption, Meter
from bso_client.progress import Progress
from bso_client.run import TrialRun
from bso_client.transports.transport import Transport

_ABOUT = "the beginning of a trial (get_batch_size)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a rank brings: what it tells the others, its part of a batch, and its meter (``assumed`` if that fails)."""

    joining: Joining
    share: Share
    monitor: Monitor
    assumed: Monitor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    job_id: str
    progress: Progress
    before: Consumption
    leader: Leader


class Together:
    """The ranks of a training, seen from one of them. ``run`` is the current or last training."""

    def __init__(
        self, ranks: TorchRanks, *, samples_per_epoch: float | None, open_transport: Callable[[], Transport]
    ) -> None:
        self.ranks = ranks
        self.run: SharedRun | None = None
        self._exchange = Exchange(ranks)
        self._samples_per_epoch = samples_per_epoch
        self._open_transport = open_transport
        self._leader: LeaderWatch | None = None

    async def begin(
        self,
        prepare: Callable[[], Equipment],
        lead: Callable[[HardwareKind], Coroutine[Any, Any, TrialRun]],
    ) -> SharedRun:
        """Begin a trial on all ranks; ``lead`` asks for it on rank 0. Errors of any rank are raised on every rank."""
        equipment, mine = _prepared(prepare)
        said = await self._exchange.gather(mine, about=_ABOUT)
        raise_first(said, rank=self.ranks.rank)
        joined = [each for each in said if isinstance(each, Joining)]
        check_joined(joined)
        assert equipment is not None
        led: list[TrialRun] = []

        async def make() -> _Begun:
            led.append(await lead(hardware_of_all(joined)))
            return await self._checked(led[0], equipment.share)

        try:
            begun = await self._exchange.lead(make, about=_ABOUT)
        except RankLost as lost:
            for each in led:
                await each.finish(Outcome.INTERRUPTED, described(lost))
            raise
        self.run = self._training(begun, equipment, joined, led[0] if led else None)
        return self.run

    async def end_unstarted(self) -> None:
        """Call off a trial whose training never began. The ranks need not meet."""
        if self.run is not None and not self.run.has_started:
            self.run.has_left = True
            await self.run.finish(Outcome.CANCELLED, "its training was never begun")

    async def close(self, *, timeout_s: float, reason: str, outcome: Outcome) -> None:
        """End the current trial, and let go of the group. The ranks need not meet."""
        if self.run is not None:
            await self.run.finish(outcome, reason, timeout_s=timeout_s)
        self.ranks.close()
        if self._leader is not None:
            self._leader.close()

    async def _checked(self, led: TrialRun, share: Share) -> _Begun:
        try:
            share.of(led.progress.batch_size)
        except BsoError as error:
            await led.finish(Outcome.CANCELLED, described(error))
            raise
        return _Begun(job_id=led.job_id, progress=led.progress, before=led.meter.consumed, leader=this_process())

    def _training(self, begun: _Begun, equipment: Equipment, joined: list[Joining], led: TrialRun | None) -> SharedRun:
        if self._leader is None:
            self._leader = LeaderWatch(begun.leader)
            if self.ranks.rank != 0:
                make_ready(self._open_transport)
        monitor = equipment.assumed
        if not is_energy_assumed(joined):
            counted = counted_devices(joined, self.ranks.rank)
            monitor = counting(equipment.monitor, equipment.joining.devices, counted)
        return SharedRun(
            self._exchange,
            Place(
                job_id=begun.job_id,
                data_parallel_size=equipment.share.size,
                local_batch_size=equipment.share.of(begun.progress.batch_size),
                samples_per_epoch=self._samples_per_epoch,
                led=led,
                leader=self._leader,
                open_transport=self._open_transport,
            ),
            progress=copy.copy(begun.progress),
            meter=PooledMeter(Meter(monitor), before=begun.before, size=self.ranks.size),
        )


def _prepared(prepare: Callable[[], Equipment]) -> tuple[Equipment | None, Joining | CarriedError]:
    try:
        equipment = prepare()
    except Exception as error:  # noqa: BLE001  # raised on every rank
        return None, carried(error)
    return equipment, equipment.joining
