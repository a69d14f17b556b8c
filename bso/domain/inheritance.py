"""What a new version of a job takes over from its predecessor, or a job from one like it. Copying, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bso.domain.frozen_values import replace
from bso.domain.job import JobVersion
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import OUT_OF_MEMORY_FOR_GOOD, ArmRecord, Knowledge
from bso.domain.policies import policy_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """What a version knows before its first run, and its policy remembers; by key of the hardware kind of each.

    ``source`` names the version or the job that it comes from, for people; ``batch_sizes`` are those that it concerns.
    """

    source: str
    batch_sizes: tuple[int, ...]
    memories: Mapping[str, Any]
    knowledge: Mapping[str, Knowledge]


def inheritance_from(source: JobVersion, spec: JobSpec, *, sibling: str | None = None) -> Inheritance | None:
    """What a version with this specification takes over from another one of its job, or of the job ``sibling``.

    None: both have different policies, or theirs takes nothing over. Raises PolicyMissing.
    """
    if source.spec.policy != spec.policy:
        return None
    inherited = policy_named(spec.policy).inherit(source, spec, is_sibling=sibling is not None)
    if inherited is None:
        return None
    knowledge = {key: _knowledge(known) for key, known in source.knowledge.items()}
    knowledge |= {
        key: knowledge[key].with_memory(spec.policy, memory)
        for key, memory in inherited.on_hardware.items()
        if key in knowledge
    }
    return Inheritance(
        source=f"version {source.version_number}" if sibling is None else f"job {sibling}",
        batch_sizes=tuple(sorted(inherited.batch_sizes.union(*(known.arms for known in knowledge.values())))),
        memories={} if inherited.memory is None else {spec.policy: inherited.memory},
        knowledge=knowledge,
    )


def _knowledge(known: Knowledge) -> Knowledge:
    """Of a batch size that ran out of memory for good, one more time will prove it."""
    arms = {
        size: ArmRecord(out_of_memories=min(arm.out_of_memories, OUT_OF_MEMORY_FOR_GOOD - 1))
        for size, arm in known.arms.items()
        if arm.out_of_memories
    }
    return replace(Knowledge(hardware=known.hardware), arms=arms, is_inherited=True)
