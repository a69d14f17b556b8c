"""Values of policies' own classes, read again from the parsed JSON that was written of them.

What belongs to a policy that is not installed here stays as it was parsed: it can be shown and passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from bso.domain.events import JobRegistered, JobRespecified, LateResult, TrialEnded
from bso.domain.frozen_values import replace
from bso.domain.job import JobVersion, UnacknowledgedStop
from bso.domain.knowledge import Knowledge
from bso.domain.policies import PolicyMissing, find_policy
from bso.domain.policy import Policy
from bso.schema.envelope import validated

_Ended = TypeVar("_Ended", bound=TrialEnded | LateResult)
_Registered = TypeVar("_Registered", bound=JobRegistered | JobRespecified)


def read_version(version: JobVersion) -> JobVersion:
    """A version of a job with all that policies remember of it. Raises MalformedMessage."""
    knowledge = {key: _read_knowledge(known) for key, known in version.knowledge.items()}
    return replace(version, memories=_read_memories(version.memories), knowledge=knowledge)


def read_stop(stop: UnacknowledgedStop) -> UnacknowledgedStop:
    """What was known before a stop, with what policies remembered then. Raises MalformedMessage."""
    if stop.knowledge is None or stop.memories is None:
        return stop
    return replace(stop, memories=_read_memories(stop.memories), knowledge=_read_knowledge(stop.knowledge))


def read_end(event: _Ended) -> _Ended:
    """The end of a trial with what its policy has fitted to it. Raises MalformedMessage."""
    if event.learnt is None:
        return event
    policy = _installed(event.learnt.policy)
    if policy is None or policy.learnt is None:
        return event
    data = validated(policy.learnt, event.learnt.data, f"what policy {policy.name} has learnt")
    return replace(event, learnt=replace(event.learnt, data=data))


def read_inherited(event: _Registered) -> _Registered:
    """A registration with what is inherited. Raises MalformedMessage."""
    if event.inherited is None:
        return event
    knowledge = {key: _read_knowledge(known) for key, known in event.inherited.knowledge.items()}
    memories = _read_memories(event.inherited.memories)
    return replace(event, inherited=replace(event.inherited, memories=memories, knowledge=knowledge))


def _read_knowledge(knowledge: Knowledge) -> Knowledge:
    memories = {
        name: _read(policy.hardware_memory, memory, name) if (policy := _installed(name)) is not None else memory
        for name, memory in knowledge.memories.items()
    }
    return replace(knowledge, memories=memories)


def _read_memories(memories: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _read(policy.version_memory, memory, name) if (policy := _installed(name)) is not None else memory
        for name, memory in memories.items()
    }


def _read(memory_type: type[Any] | None, memory: object, policy: str) -> Any:
    return memory if memory_type is None else validated(memory_type, memory, f"the memory of policy {policy}")


def _installed(name: str) -> Policy | None:
    found = find_policy(name)
    return None if isinstance(found, PolicyMissing) else found
