"""Exchanges over torch.distributed, in a gloo group of their own: beside NCCL, and with a deadline."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from bso_client.distributed.ranks import Ranks
from bso_client.distributed.rendezvous import in_time, meet
from bso_client.distributed.shares import Share
from bso_client.errors import BsoError, DistributedNotReady, InvalidSetting, RankLost, RanksOutOfStep

T = TypeVar("T")

_DISCONNECT_S = 0.2
"""What takes longer waits for an exchange."""

_NOTE_S = 1.0
"""For a note; a process that received SIGTERM has little time."""

_HEADER = struct.Struct("<QQ112s")  # step, bytes of the value, what it is about


@dataclass(frozen=True, slots=True)
class _Header:
    step: int
    length: int
    about: str

    def packed(self) -> bytes:
        return _HEADER.pack(self.step, self.length, self.about.encode()[:112])


class TorchRanks:
    """All ranks of torch.distributed, as Ranks. The group is made at the first exchange, which is collective, too.

    No exchange takes longer than ``timeout_s``: a rank that waits for others longer raises RankLost, and so does every
    later exchange. Values are pickled. ``about`` is compared among the ranks up to its first parenthesis.
    """

    def __init__(self, *, timeout_s: float, local_rank: int | None = None) -> None:
        distributed = _distributed()
        self.rank: int = int(distributed.get_rank())
        self.size: int = int(distributed.get_world_size())
        self.local_rank: int = self.rank if local_rank is None else local_rank
        self.timeout_s = timeout_s
        self._world = distributed.group.WORLD
        self._group: Any = None
        self._step = 0
        self._lost: BsoError | None = None
        self._lock = threading.Lock()

    @property
    def is_current(self) -> bool:
        """Whether torch.distributed is still the one that these are the ranks of."""
        distributed = _distributed()
        return distributed.is_initialized() and distributed.group.WORLD is self._world

    def broadcast(self, value: T, *, about: str = "broadcast") -> T:
        """The value of rank 0, on all ranks. Raises RankLost, RanksOutOfStep, DistributedNotReady."""
        with self._exchange(about):
            mine = pickle.dumps(value) if self.rank == 0 else b""
            lengths = self._agree(len(mine), about)
            received = self._received(mine, lengths[0])
        return value if self.rank == 0 else pickle.loads(received)  # noqa: S301  # from a process of this training

    def gather(self, value: T, *, about: str = "gather") -> list[T]:
        """The values of all ranks, by rank, on all ranks. Raises RankLost, RanksOutOfStep, DistributedNotReady."""
        with self._exchange(about):
            mine = pickle.dumps(value)
            lengths = self._agree(len(mine), about)
            parts = self._gathered(mine.ljust(max(lengths), b"\0"))
        return [pickle.loads(part[:length]) for part, length in zip(parts, lengths, strict=True)]  # noqa: S301

    def give_up(self, reason: str) -> None:
        """From now on every exchange raises RankLost; the other ranks see that this one has gone."""
        if self._lost is None:
            self._lost = RankLost(reason)
        self.close()

    def close(self) -> None:
        """Let go of the group: the others see its connections end. The training's own groups are not touched.

        An exchange that others have not come to yet keeps the connections until they come, or its time is over; it is
        not waited for here.
        """
        if self._group is None:
            return
        held, self._group = [self._group], None
        thread = threading.Thread(target=held.clear, name="bso ranks' end", daemon=True)  # it waits for the exchange
        with contextlib.suppress(RuntimeError):  # the interpreter starts no threads any more
            thread.start()
            thread.join(_DISCONNECT_S)

    def leave_note(self, key: str) -> None:
        """Leave a note for the other ranks, which find it without meeting this one. Nothing is raised."""
        with contextlib.suppress(Exception):  # the process that keeps notes may be gone
            in_time(lambda: _store().set(f"bso/{key}", "noted"), timeout_s=_NOTE_S)

    def has_note(self, key: str) -> bool | None:
        """Whether any rank left this note; None if the process that keeps notes is gone, or does not answer."""
        try:
            return in_time(lambda: bool(_store().check([f"bso/{key}"])), timeout_s=_NOTE_S)
        except Exception:  # noqa: BLE001  # whatever a connection ends with
            return None

    def leave_first(self, key: str, words: str) -> None:
        """Leave words for the other ranks, unless another one has been first. Nothing is raised."""
        with contextlib.suppress(Exception):  # the process that keeps notes may be gone, too
            in_time(lambda: _store().compare_set(f"bso/{key}", "", words), timeout_s=_NOTE_S)

    def first_left(self, key: str) -> str | None:
        """The words that the first rank has left; None: none, or the process that keeps them is gone."""
        try:
            return in_time(lambda: _words_in(_store(), f"bso/{key}"), timeout_s=_NOTE_S)
        except Exception:  # noqa: BLE001  # a lost connection has many kinds
            return None

    @property
    def is_lost(self) -> bool:
        """Whether an exchange has failed, so that there will be no other."""
        return self._lost is not None

    @contextlib.contextmanager
    def _exchange(self, about: str) -> Iterator[None]:
        with self._lock:
            if self._lost is not None:
                raise type(self._lost)(str(self._lost))
            if not self.is_current:
                raise DistributedNotReady(
                    f"{_named(about)}: the process group of this training was destroyed: close the optimizer before, "
                    "and begin anew after torch.distributed.init_process_group"
                )
            try:
                if self._group is None:
                    made = in_time(lambda: self._new_group(_named(about)), timeout_s=2 * self.timeout_s)
                    self._group = made
                yield
            except RanksOutOfStep:
                raise
            except RuntimeError as error:
                self.give_up(self._explained(error, about))
                raise RankLost(str(self._lost)) from error
            except Exception as error:
                self.give_up(str(error))
                raise

    def _new_group(self, about: str) -> Any:
        distributed, store = _distributed(), _store()
        name = meet(store, rank=self.rank, size=self.size, timeout_s=self.timeout_s, about=about)
        own = distributed.PrefixStore(f"bso/{name}", store)
        return distributed.ProcessGroupGloo(own, self.rank, self.size, timedelta(seconds=self.timeout_s))

    def _agree(self, length: int, about: str) -> list[int]:
        """Check that all ranks are at the same exchange, and return the lengths of their values."""
        self._step += 1
        header = _Header(step=self._step, length=length, about=about)
        headers = [_read(part) for part in self._gathered(header.packed())]
        if len({(each.step, _kind(each.about)) for each in headers}) > 1:
            called = ", ".join(f"rank {rank}: {_named(each.about)}" for rank, each in enumerate(headers))
            raise RanksOutOfStep(
                f"the ranks do not call the same methods in the same order ({called}): call each on every rank"
            )
        return [each.length for each in headers]

    def _gathered(self, mine: bytes) -> list[bytes]:
        torch: Any = importlib.import_module("torch")
        tensor = _tensor(mine)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        self._group.allgather([parts], [tensor]).wait()
        return [bytes(part.numpy().tobytes()) for part in parts]

    def _received(self, mine: bytes, length: int) -> bytes:
        tensor = _tensor(mine if self.rank == 0 else bytes(length))
        self._group.broadcast(tensor, 0).wait()
        return bytes(tensor.numpy().tobytes())

    def _explained(self, error: RuntimeError, about: str) -> str:
        called = _named(about)
        if "timed out" in str(error).lower() or "timeout" in str(error).lower():
            return (
                f"not every rank came to {called} within {self.timeout_s:g} s: call {called} on every rank, in the "
                f"same order as the others (rank_timeout= sets the time), and see in their logs whether one failed"
            )
        return (
            f"a rank has ended or given up, seen at {called} on rank {self.rank}: see the logs of the other ranks, "
            f"and call {called} on every rank"
        )


def share_of(data_parallel_group: Any, ranks: Ranks, *, is_uneven: bool) -> Share:
    """This rank's part of a batch, among the members of the group; None: among all. Raises InvalidSetting."""
    if data_parallel_group is None:
        return Share(position=ranks.rank, size=ranks.size, is_uneven=is_uneven)
    distributed = _distributed()
    try:
        position = int(distributed.get_rank(data_parallel_group))
        size = int(distributed.get_world_size(data_parallel_group))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidSetting(
            f"data_parallel_group must be a torch.distributed group, got {data_parallel_group!r} ({error})"
        ) from error
    if position < 0:
        raise InvalidSetting(
            f"rank {ranks.rank} is no member of its data_parallel_group: pass each rank the group that it belongs to"
        )
    return Share(position=position, size=size, is_uneven=is_uneven)


def _distributed() -> Any:
    return importlib.import_module("torch.distributed")


def _store() -> Any:
    inner: Any = importlib.import_module("torch.distributed.distributed_c10d")
    return inner._get_default_store()  # noqa: SLF001  # there is no other way to it


def _tensor(data: bytes) -> Any:
    torch: Any = importlib.import_module("torch")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _read(packed: bytes) -> _Header:
    step, length, about = _HEADER.unpack(packed)
    return _Header(step, length, about.rstrip(b"\0").decode(errors="replace"))


def _kind(about: str) -> str:
    return about.partition("(")[0]


def _named(about: str) -> str:
    """What stands in the parentheses, if there are any: the method that the user called."""
    return about.partition("(")[2].partition(")")[0] or about


def _words_in(store: Any, key: str) -> str | None:
    return bytes(store.get(key)).decode() if store.check([key]) else None
