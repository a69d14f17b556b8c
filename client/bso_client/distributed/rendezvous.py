"""How ranks find each other in a store that may outlive them, with what earlier launches left in it.

torchrun keeps one store over its elastic restarts; a group made by torch.distributed.new_group then finds the addresses
of processes that are gone (seen with PyTorch 2.13). Here every launch meets under a name of its own.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from bso_client.background import in_thread
from bso_client.errors import RankLost

T = TypeVar("T")

_PAUSE_S = 0.01


def in_time(use: Callable[[], T], *, timeout_s: float) -> T:
    """What a use of the store returns. Raises RankLost after ``timeout_s``.

    A store whose process is frozen lets its callers wait without a deadline, so the use has a thread of its own, which
    is left behind then.
    """
    try:
        return in_thread(use, name="bso store").result(timeout_s)
    except TimeoutError:
        raise RankLost(
            f"the process that keeps the store of torch.distributed did not answer within {timeout_s:g} s: see whether "
            "it is stopped (rank 0, or the agent of torchrun), and begin anew"
        ) from None


def meet(store: Any, *, rank: int, size: int, timeout_s: float, about: str) -> str:
    """A name that all ranks of this launch agree on, and no other launch uses. Raises RankLost after ``timeout_s``.

    Every rank says hello with a word that nobody used before. Rank 0 answers with all words that it has received and
    the name, again and again, until every rank has found its own word in the answer and confirmed the name.
    """
    looks = _looks(timeout_s)
    if rank == 0:
        return _invite(store, size, looks, timeout_s=timeout_s, about=about)
    word = uuid.uuid4().hex
    store.set(f"bso/hello/{rank}", word)
    for _ in looks:
        answer = json.loads(store.get("bso/answer")) if store.check(["bso/answer"]) else {}
        if answer.get(str(rank)) == word:
            store.set(f"bso/{answer['name']}/{rank}", "here")
            return str(answer["name"])
    raise RankLost(_missing([0], timeout_s=timeout_s, about=about))


def _invite(store: Any, size: int, looks: Iterator[None], *, timeout_s: float, about: str) -> str:
    name, received = uuid.uuid4().hex, dict[int, str]()
    away = list(range(1, size))
    for _ in looks:
        hellos = {rank: f"bso/hello/{rank}" for rank in away}
        now = received | {rank: store.get(key).decode() for rank, key in hellos.items() if store.check([key])}
        if now != received:
            received = now
            store.set("bso/answer", json.dumps({"name": name} | {str(rank): word for rank, word in received.items()}))
        away = [rank for rank in away if not store.check([f"bso/{name}/{rank}"])]
        if not away:
            return name
    raise RankLost(_missing(away, timeout_s=timeout_s, about=about))


def _looks(timeout_s: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        yield
        time.sleep(_PAUSE_S)


def _missing(ranks: Sequence[int], *, timeout_s: float, about: str) -> str:
    names = ", ".join(map(str, ranks[:8])) + ("" if len(ranks) <= 8 else ", ...")
    return (
        f"rank {names} did not come to {about} within {timeout_s:g} s: call {about} on every rank, in the same order "
        "as the others (rank_timeout= sets the time), and see in its log whether it failed"
    )
