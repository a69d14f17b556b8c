"""The policy keeps what every policy must keep."""

from bso.policies.testing import PolicyContract


class TestGreedy(PolicyContract):
    policy = "greedy"
