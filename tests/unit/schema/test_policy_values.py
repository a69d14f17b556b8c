"""Values of policies are read as of their classes where the policy is installed, else kept as they are."""

from collections.abc import Callable
from typing import Any

import pytest

from bso.domain.events import JobRegistered, PolicyData, TrialEnded
from bso.domain.frozen_values import replace
from bso.domain.inheritance import Inheritance
from bso.domain.job import JobVersion, UnacknowledgedStop
from bso.domain.knowledge import Knowledge
from bso.domain.trial import Outcome
from bso.policies.curve.epoch_records import EpochKnowledge
from bso.policies.curve.memory import LearntCurve
from bso.policies.pruning_thompson.memory import PruningState, Stage
from bso.schema.errors import MalformedMessage
from bso.schema.policy_values import read_end, read_inherited, read_stop, read_version
from tests.unit.domain.builders import A100, THE_EPOCH, JobLife

THEIRS: dict[str, Any] = {"theirs": {"whatever": [1, None]}}
OURS = PruningState(stage=Stage.PRUNING, default_batch_size=32)
PARSED: dict[str, Any] = {"pruning_thompson": {"stage": "Pruning", "default_batch_size": 32}}
MALFORMED: dict[str, Any] = {"pruning_thompson": {"stage": 7}}


def known(memories: dict[str, Any]) -> Knowledge:
    """What was learnt on a hardware kind, and is remembered of it."""
    return Knowledge(hardware=A100, memories=memories)


def version(memories: dict[str, Any]) -> JobVersion:
    life = JobLife()
    life.register()
    assert life.job is not None
    return replace(life.job.version, knowledge={A100.key: known(memories)})


def registered(memories: dict[str, Any]) -> JobRegistered:
    inherited = Inheritance(source="job", batch_sizes=(), memories={}, knowledge={A100.key: known(memories)})
    return JobRegistered(version_number=1, spec=version({}).spec, seed=1, owner=None, inherited=inherited)


def stop(memories: dict[str, Any]) -> UnacknowledgedStop:
    return UnacknowledgedStop(version_number=1, knowledge=known(memories), memories={})


READ: list[tuple[Callable[[Any], Any], Callable[[dict[str, Any]], Any]]] = [
    (read_version, version),
    (read_inherited, registered),
    (read_stop, stop),
]
each = pytest.mark.parametrize(("read", "holding"), READ, ids=["version", "registration", "stop"])


@each
def test_memories_of_installed_policies_become_values_of_their_classes(read: Any, holding: Any) -> None:
    assert read(holding(PARSED | THEIRS)) == holding({"pruning_thompson": OURS} | THEIRS)


@each
def test_a_memory_that_is_not_of_the_class_of_its_policy_is_malformed(read: Any, holding: Any) -> None:
    with pytest.raises(MalformedMessage, match=r"the memory of policy pruning_thompson: .*stage"):
        read(holding(MALFORMED))


def test_a_version_and_a_stop_have_memories_of_their_own() -> None:
    """Of the policy curve, which remembers epochs to the target on whatever hardware."""
    parsed: dict[str, Any] = {"curve": {"records": {}}}
    read = {"curve": EpochKnowledge()}
    assert read_version(replace(version({}), memories=parsed)).memories == read
    assert read_stop(replace(stop({}), memories=parsed)).memories == read
    assert read_stop(replace(stop({}), knowledge=None, memories=None)).memories is None


def ended(policy: str, data: Any) -> TrialEnded:
    """An end from which a policy has learnt this."""
    return TrialEnded(
        trial_number=1,
        outcome=Outcome.CONVERGED,
        reason="",
        cost=1.0,
        time_s=1.0,
        energy_j=1.0,
        bound=None,
        is_over_bound=False,
        is_failure=False,
        learnt_cost=1.0,
        ended_at=THE_EPOCH,
        learnt=PolicyData(policy=policy, data=data),
    )


def test_what_was_learnt_is_of_the_class_of_its_policy_where_that_is_installed() -> None:
    parsed = {"epochs": None, "epoch_cost": None}
    assert read_end(ended("curve", parsed)) == ended("curve", LearntCurve(epochs=None, epoch_cost=None))
    for other in ("theirs", "pruning_thompson"):  # the one is not installed, the other one fits nothing to an end
        assert read_end(ended(other, parsed)) == ended(other, parsed)
    with pytest.raises(MalformedMessage, match=r"what policy curve has learnt: .*epochs"):
        read_end(ended("curve", {"epochs": "many"}))
