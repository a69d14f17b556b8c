"""A store whose process is frozen: its callers would wait for ever."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from bso_client.distributed.rendezvous import in_time, meet
from bso_client.errors import RankLost


class FrozenStore:
    """A TCPStore as it behaves while its process is stopped: what is set goes nowhere, and no look-up returns."""

    def __init__(self) -> None:
        self.end = threading.Event()

    def set(self, key: str, value: str) -> None:
        """Returns at once."""

    def check(self, keys: Sequence[str]) -> bool:
        """Waits for ever."""
        self.end.wait()
        raise ConnectionError(keys)


@pytest.fixture
def store() -> Iterator[FrozenStore]:
    store = FrozenStore()
    yield store
    store.end.set()


USES: list[Callable[[FrozenStore], object]] = [
    lambda store: store.check(["note"]),
    lambda store: meet(store, rank=0, size=2, timeout_s=60.0, about="get_batch_size"),
    lambda store: meet(store, rank=1, size=2, timeout_s=60.0, about="get_batch_size"),
]


@pytest.mark.parametrize("use", USES, ids=["note", "rank 0", "rank 1"])
def test_a_frozen_store_is_waited_for_no_longer_than_its_time(
    store: FrozenStore, use: Callable[[FrozenStore], object]
) -> None:
    with pytest.raises(RankLost, match=r"did not answer within 0\.05 s"):
        in_time(lambda: use(store), timeout_s=0.05)


def test_what_the_store_raises_is_raised_where_it_is_used() -> None:
    store = FrozenStore()
    store.end.set()
    with pytest.raises(ConnectionError):
        in_time(lambda: store.check(["note"]), timeout_s=60.0)
