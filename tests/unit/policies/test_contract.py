"""The policies of this distribution keep what every policy must keep."""

from bso.policies.testing import PolicyContract


class TestCurve(PolicyContract):
    policy = "curve"


class TestPruningThompson(PolicyContract):
    policy = "pruning_thompson"
