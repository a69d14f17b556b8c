"""The ranks of a training, seen from one of them: what each brings, and what all have together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from bso.domain.hardware import HardwareKind
from bso_client.delivery.journal import Journal
from bso_client.distributed.devices import counting
from bso_client.distributed.exchange import CarriedError, RankExchange, carried, raise_first
from bso_client.distributed.leader import LastWords, Leader, LeaderWatch, make_ready, say_for
from bso_client.distributed.membership import (
    Equipment,
    Member,
    check_joined,
    counted_devices,
    hardware_of_all,
    is_energy_assumed,
)
from bso_client.distributed.ranks import Ranks, is_initialized
from bso_client.distributed.shares import Share
from bso_client.energy.monitor import Monitor
from bso_client.errors import DistributedNotReady
from bso_client.settings import Settings
from bso_client.training.state import Consumption, TrainingState
from bso_client.transports.transport import Transport

if TYPE_CHECKING:
    from bso_client.distributed.torch_ranks import TorchRanks

T = TypeVar("T")

_ABOUT = "the beginning of a trial (get_batch_size)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """A rank as it takes part in a trial: the hardware of all ranks, its own part of a batch, what it measures with."""

    hardware: HardwareKind
    share: Share
    monitor: Monitor


class Group:
    """The processes that train together; a process that trains alone is a group of one."""

    def __init__(
        self, exchange: RankExchange, open_transport: Callable[[], Transport], journal_of: Callable[[str], Journal]
    ) -> None:
        self.exchange = exchange
        self._open_transport = open_transport
        self._journal_of = journal_of
        self._leader: LeaderWatch | None = None

    @property
    def ranks(self) -> Ranks:
        """The processes."""
        return self.exchange.ranks

    async def join(self, prepare: Callable[[], Equipment]) -> Party:
        """Meet for a trial; an error of any rank's ``prepare``, or of what they have together, is raised on every rank.

        Raises also RankLost, RanksOutOfStep.
        """
        if self.exchange.is_alone:
            own = prepare()
            return Party(hardware=own.member.hardware, share=own.share, monitor=own.monitor)
        equipment, mine = _prepared(prepare)
        said = await self.exchange.gather(mine, about=_ABOUT)
        raise_first(said, rank=self.ranks.rank)
        joined = [each for each in said if isinstance(each, Member)]
        check_joined(joined)
        assert equipment is not None
        monitor = equipment.assumed
        if not is_energy_assumed(joined):
            counted = counted_devices(joined, self.ranks.rank)
            monitor = counting(equipment.monitor, equipment.member.devices, counted)
        return Party(hardware=hardware_of_all(joined), share=equipment.share, monitor=monitor)

    async def lead(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Begin a trial on rank 0; the result, or the error, is that of all ranks."""
        return await self.exchange.lead(make, about=_ABOUT)

    def watch(self, leader: Leader) -> None:
        """From now on know whether the process of rank 0 has died."""
        if self._leader is None and not self.exchange.is_alone:
            self._leader = LeaderWatch(leader)
            if self.ranks.rank != 0:
                make_ready(self._open_transport)

    async def speak_for_rank_0(self, state: TrainingState, consumed: Consumption) -> None:
        """Let the optimizer know how a trial has ended whose rank 0 has died; without effect while that lives."""
        leader = self._leader
        if leader is None or not (leader.has_died or (self.exchange.is_lost and await leader.has_died_soon())):
            return
        words = LastWords(state=state, consumed=consumed)
        await say_for(leader.leader, words, self._open_transport, self._journal_of)

    def close(self) -> None:
        """Let go of the other ranks. They need not meet."""
        self.exchange.close()
        if self._leader is not None:
            self._leader.close()


def ranks_for(settings: Settings, *, timeout_s: float) -> TorchRanks | None:
    """The ranks of torch.distributed, if it is in use; None: this process trains alone.

    Raises DistributedNotReady where a launcher started several processes and they have not found each other.
    """
    if is_initialized():
        from bso_client.distributed.torch_ranks import TorchRanks

        ranks = TorchRanks(timeout_s=timeout_s, local_rank=settings.local_rank)
        return ranks if ranks.size > 1 else None
    if settings.world_size > 1:
        which = "" if settings.rank is None else f"this is rank {settings.rank} of {settings.world_size}, but "
        raise DistributedNotReady(
            f"{which}no process group is initialised, and WORLD_SIZE is {settings.world_size}: call "
            "torch.distributed.init_process_group() on every rank before get_batch_size() or trials() (with Hugging "
            "Face, make TrainingArguments; with Lightning, call start_ranks(trainer) of its integration); to train in "
            "one process, unset WORLD_SIZE"
        )
    return None


def _prepared(prepare: Callable[[], Equipment]) -> tuple[Equipment | None, Member | CarriedError]:
    try:
        equipment = prepare()
    except Exception as error:  # noqa: BLE001  # raised on every rank
        return None, carried(error)
    return equipment, equipment.member
