"""The policies of this distribution keep what every policy must keep, and one that does not keep it is found out."""

from collections.abc import Iterator

import pytest

from bso.domain.policies import PolicyMissing
from bso.policies.testing import PolicyContract
from tests.fakes.policies import installed
from tests.unit.policies import broken_policies
from tests.unit.policies.broken_policies import BROKEN, INSTALLED, Sound


class TestCurve(PolicyContract):
    policy = "curve"


class TestPruningThompson(PolicyContract):
    policy = "pruning_thompson"


@pytest.fixture(scope="module", autouse=True)
def _theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Policies that are installed beside ours, each under the name of its class."""
    policies = {name: f"{broken_policies.__name__}:INSTALLED.{name}" for name in vars(INSTALLED)}
    with installed(tmp_path_factory.mktemp("site"), **policies):
        yield


class TestSound(PolicyContract):
    policy = "sound"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_policy_that_breaks_a_rule_fails_the_test_of_it(broken: type[Sound]) -> None:
    class Theirs(PolicyContract):
        policy = broken.__name__.lower()

    rule, said = BROKEN[broken]
    with pytest.raises((AssertionError, PolicyMissing), match=said):
        getattr(Theirs(), f"test_{rule}")()


def test_each_rule_has_a_policy_that_breaks_it() -> None:
    rules = {name.removeprefix("test_") for name in vars(PolicyContract) if name.startswith("test_")}
    assert rules == {rule for rule, _ in BROKEN.values()}
