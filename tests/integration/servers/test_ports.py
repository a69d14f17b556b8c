"""Servers that start at once get ports of their own."""

import random

from tools.private_servers.ports import ClaimedPorts


def claimed(seed: int) -> ClaimedPorts:
    """Three ports, looked for in an order that the seed gives."""
    before = random.getstate()
    random.seed(seed)
    try:
        return ClaimedPorts(3)
    finally:
        random.setstate(before)


def test_a_claimed_port_is_nobody_elses_before_anything_listens_on_it() -> None:
    with claimed(1) as first, claimed(1) as second:
        assert set(first.numbers).isdisjoint(second.numbers)


def test_a_released_port_can_be_claimed_again() -> None:
    with claimed(2) as first:
        pass
    with claimed(2) as again:
        assert again.numbers == first.numbers
