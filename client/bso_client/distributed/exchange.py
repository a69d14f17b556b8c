"""Exchanges among the ranks of a training: the event loop goes on while this rank waits for others.

An error of one rank travels to the others, where it is raised with the same type and the same words.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bso_client.background import in_thread
from bso_client.distributed.ranks import Alone, Ranks
from bso_client.errors import BsoError, RankLost

if TYPE_CHECKING:
    from bso_client.distributed.torch_ranks import TorchRanks

T = TypeVar("T")

_PATIENCE_S = 5.0  # for what rank 0 has begun when the others are gone


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedError:
    """An exception as plain data. One that does not pickle arrives as a BsoError with the same words."""

    kind: type[BaseException]
    words: str
    arguments: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    def rebuilt(self) -> BaseException:
        """The exception; its own __init__ is not run again."""
        error = self.kind.__new__(self.kind, *self.arguments)
        error.args = self.arguments or (self.words,)
        error.__dict__.update(self.attributes)
        return error


def carried(error: BaseException) -> CarriedError:
    """The exception as plain data."""
    attributes = {name: value for name, value in error.__dict__.items() if name != "__notes__"}
    whole = CarriedError(kind=type(error), words=str(error), arguments=error.args, attributes=attributes)
    try:
        pickle.loads(pickle.dumps(whole)).rebuilt()  # noqa: S301  # made in this line
    except Exception:  # noqa: BLE001  # whatever somebody's exception holds
        return CarriedError(kind=BsoError, words=f"{type(error).__name__}: {error}")
    return whole


def raise_first(values: Sequence[object], *, rank: int) -> None:
    """Raise the error of the lowest rank that has one, with a note that says whose it is."""
    for origin, value in enumerate(values):
        if isinstance(value, CarriedError):
            error = value.rebuilt()
            if origin != rank:
                error.add_note(f"raised on rank {origin}")
            raise error


@dataclass(frozen=True, slots=True)
class _NotYet:
    """Rank 0 is still at it: the others wait on."""


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    value: T


class RankExchange:
    """This rank's side of every exchange. Each is made in a thread, so that signals and leases are served meanwhile.

    An exchange that is cancelled is the last one: the others could not know. Without ``several`` ranks a process trains
    alone, and each exchange returns at once.
    """

    def __init__(self, several: TorchRanks | None) -> None:
        self.has_warned_of_metrics: bool = False
        self._several = several

    @property
    def is_alone(self) -> bool:
        """Whether one process trains."""
        return self._several is None

    @property
    def ranks(self) -> Ranks:
        """The processes that train together."""
        return Alone() if self._several is None else self._several

    @property
    def is_current(self) -> bool:
        """Whether torch.distributed is still the one that these are the ranks of."""
        return self._several is None or self._several.is_current

    @property
    def is_lost(self) -> bool:
        """Whether an exchange has failed, so that there will be no other."""
        return self._several is not None and self._several.is_lost

    def leave_note(self, key: str) -> None:
        """Leave a note for the other ranks that they find without meeting this one."""
        if self._several is not None:
            self._several.leave_note(key)

    async def has_note(self, key: str) -> bool | None:
        """Whether any rank left this note; None if the process that keeps notes is gone, or does not answer."""
        several = self._several
        return False if several is None else await self._in_thread(lambda: several.has_note(key))

    def leave_first(self, key: str, words: str) -> None:
        """Leave words for the other ranks, unless another one has been first."""
        if self._several is not None:
            self._several.leave_first(key, words)

    async def first_left(self, key: str) -> str | None:
        """The words that the first rank has left; None: none has, or they cannot be read any more."""
        several = self._several
        return None if several is None else await self._in_thread(lambda: several.first_left(key))

    def close(self) -> None:
        """Let go of the group."""
        if self._several is not None:
            self._several.close()

    async def gather(self, value: T, *, about: str) -> list[T]:
        """The values of all ranks, by rank. Raises RankLost, RanksOutOfStep."""
        several = self._several
        return [value] if several is None else await self._in_thread(lambda: several.gather(value, about=about))

    async def lead(self, make: Callable[[], Coroutine[Any, Any, T]], *, about: str) -> T:
        """Do something on rank 0 alone; its result, or the error that it raised, is that of all ranks.

        It may take longer than the deadline of an exchange: rank 0 signals from time to time that it is alive.
        """
        if self._several is None:
            return await make()
        if self._several.rank != 0:
            followed: T = await self._follow(self._several, about)
            return followed
        task = asyncio.ensure_future(_outcome_of(make))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._several.timeout_s / 3)
                if not task.done():
                    await self._broadcast(self._several, _NotYet(), about)
            await self._broadcast(self._several, task.result(), about)
        except RankLost:
            await asyncio.wait({task}, timeout=_PATIENCE_S)
            raise
        finally:
            await _cancelled(task)
        result: T = _result(task.result(), rank=0)
        return result

    async def _follow(self, several: TorchRanks, about: str) -> Any:
        while True:
            said: Any = await self._broadcast(several, None, about)
            if not isinstance(said, _NotYet):
                return _result(said, rank=several.rank)

    async def _broadcast(self, several: TorchRanks, value: T, about: str) -> T:
        return await self._in_thread(lambda: several.broadcast(value, about=f"{about} (the answer of rank 0)"))

    async def _in_thread(self, exchange: Callable[[], T]) -> T:
        try:
            return await asyncio.wrap_future(in_thread(exchange, name="bso ranks"))
        except asyncio.CancelledError:
            if self._several is not None:
                self._several.give_up("an exchange with the other ranks was interrupted")
            raise


async def _outcome_of(make: Callable[[], Coroutine[Any, Any, T]]) -> _Done[T] | CarriedError:
    try:
        return _Done(await make())
    except Exception as error:  # noqa: BLE001  # raised on every rank
        return carried(error)


def _result(outcome: Any, *, rank: int) -> Any:
    raise_first([outcome], rank=rank)
    return outcome.value


async def _cancelled(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
