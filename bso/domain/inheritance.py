"""What a new version of a job takes over from its predecessor, or a job from one like it. Copying, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bso.domain.curve.records import EpochKnowledge
from bso.domain.frozen_values import replace
from bso.domain.job import JobVersion
from bso.domain.job_spec import CURVE, JobSpec
from bso.domain.knowledge import OUT_OF_MEMORY_FOR_GOOD, ArmRecord, Knowledge, fresh_knowledge


@dataclass(frozen=True, slots=True, kw_only=True)
class Inheritance:
    """What a version knows before its first run: of ``epochs``, and by key of the hardware kind of costs and memory.

    ``source`` names the version or the job that it comes from, for people.
    """

    source: str
    epochs: EpochKnowledge
    knowledge: Mapping[str, Knowledge]


def inheritance_from(source: JobVersion, spec: JobSpec, *, sibling: str | None = None) -> Inheritance | None:
    """What a version with this specification takes over from another one of its job, or of the job ``sibling``.

    What the difference between two versions of a job does not concern is taken over as it is: epoch costs where only
    the target differs, epochs where only eta_knob does. All else is what was before a change, which the version's own
    runs confirm or refute. None: the source has no run, or one of both is not under the policy ``curve``.
    """
    if not do_policies_inherit(source.spec, spec) or not source.epochs.records:
        return None
    one, other = source.spec, spec
    is_same_training = sibling is None and one.version == other.version
    has_same_target = (one.target_metric, one.higher_is_better_metric) == (
        other.target_metric,
        other.higher_is_better_metric,
    )
    return Inheritance(
        source=f"version {source.version_number}" if sibling is None else f"job {sibling}",
        epochs=source.epochs.at_rest() if is_same_training and has_same_target else source.epochs.handed_on(),
        knowledge={
            key: _knowledge(known, spec, is_same=is_same_training and one.eta_knob == other.eta_knob)
            for key, known in source.knowledge.items()
        },
    )


def do_policies_inherit(source: JobSpec, spec: JobSpec) -> bool:
    """Whether a specification's policy can go on with what another's has learnt."""
    return {source.policy, spec.policy} == {CURVE}


def _knowledge(known: Knowledge, spec: JobSpec, *, is_same: bool) -> Knowledge:
    """Of a batch size that ran out of memory for good, one more time will prove it."""
    arms = {
        size: ArmRecord(out_of_memories=min(arm.out_of_memories, OUT_OF_MEMORY_FOR_GOOD - 1))
        for size, arm in known.arms.items()
        if arm.out_of_memories
    }
    costs = known.epoch_costs if is_same else known.epoch_costs.handed_on()
    return replace(fresh_knowledge(spec, known.hardware), arms=arms, epoch_costs=costs)
