"""Exchanges among ranks for the asynchronous core: the event loop goes on while this rank waits for others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bso_client.distributed.carried import CarriedError, carried, raise_first
from bso_client.distributed.torch_ranks import TorchRanks
from bso_client.errors import RankLost

T = TypeVar("T")

_PATIENCE_S = 5.0  # for what rank 0 has begun when the others are gone


@dataclass(frozen=True, slots=True)
class _NotYet:
    """Rank 0 is still at it: the others wait on."""


@dataclass(frozen=True, slots=True)
class _Done(Generic[T]):
    value: T


class Exchange:
    """This rank's side of every exchange. Each is made in a thread, so that signals and leases are heeded meanwhile.

    An exchange that is cancelled is the last one: the others could not know.
    """

    def __init__(self, ranks: TorchRanks) -> None:
        self.ranks = ranks
        self.was_told_of_metrics = False

    async def gather(self, value: T, *, about: str) -> list[T]:
        """The values of all ranks, by rank. Raises RankLost, RanksOutOfStep."""
        return await self._in_thread(lambda: self.ranks.gather(value, about=about))

    async def lead(self, make: Callable[[], Coroutine[Any, Any, T]], *, about: str) -> T:
        """Do something on rank 0 alone; its result, or the error that it raised, is that of all ranks.

        It may take longer than the deadline of an exchange: rank 0 tells the others from time to time that it lives.
        """
        if self.ranks.rank != 0:
            followed: T = await self._follow(about)
            return followed
        task = asyncio.ensure_future(_outcome_of(make))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self.ranks.timeout_s / 3)
                if not task.done():
                    await self._broadcast(_NotYet(), about)
            await self._broadcast(task.result(), about)
        except RankLost:
            await asyncio.wait({task}, timeout=_PATIENCE_S)
            raise
        finally:
            await _cancelled(task)
        result: T = _result(task.result(), rank=0)
        return result

    async def _follow(self, about: str) -> Any:
        while True:
            said: Any = await self._broadcast(None, about)
            if not isinstance(said, _NotYet):
                return _result(said, rank=self.ranks.rank)

    async def _broadcast(self, value: T, about: str) -> T:
        return await self._in_thread(lambda: self.ranks.broadcast(value, about=f"{about} (the answer of rank 0)"))

    async def _in_thread(self, exchange: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                value = exchange()
            except BaseException as error:  # noqa: BLE001  # raised where it is waited for
                tell(_set_exception, future, error)
            else:
                tell(_set_result, future, value)

        def tell(settle: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, *arguments)

        threading.Thread(target=work, name="bso ranks", daemon=True).start()
        try:
            return await future
        except asyncio.CancelledError:
            self.ranks.give_up("an exchange with the other ranks was interrupted")
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


def _set_result(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
