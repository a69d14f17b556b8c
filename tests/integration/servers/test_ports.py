"""Servers that start at once get ports of their own."""

import os
import random

from tools.private_servers.ports import ClaimedPorts


def claimed() -> ClaimedPorts:
    """Three ports, looked for in an order that is this process' own: others run this test at the same time."""
    before = random.getstate()
    random.seed(os.getpid())
    try:
        return ClaimedPorts(3)
    finally:
        random.setstate(before)


def test_a_claimed_port_is_nobody_elses_before_anything_listens_on_it() -> None:
    with claimed() as first, claimed() as second:
        assert set(first.numbers).isdisjoint(second.numbers)


def test_a_released_port_can_be_claimed_again() -> None:
    with claimed() as first:
        pass
    with claimed() as again:
        assert again.numbers == first.numbers
