"""A policy that keeps the contract, and for each of its rules one that breaks it."""

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from typing_extensions import override

from bso.domain.availability import available
from bso.domain.events import LateResult, TrialEnded
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.knowledge import Knowledge, nearest, reference_of
from bso.domain.policy import Choice, Outlook, Policy
from bso.domain.progress import Verdict, judge_progress
from bso.domain.trial import Outcome, Trial


class Sound(Policy):
    """Runs what is near the default."""

    name = "sound"

    @override
    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        offered = self.offered(job, recurrence, hardware)
        size = nearest(job.version.spec.default_batch_size, offered)
        return Choice(batch_size=size, reason="it is near the default")

    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        """What fits, and has not failed in the recurrence while something else is left."""
        return available(job.version.knowledge_on(hardware), job.version.spec, recurrence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What some of them remember on a hardware kind."""

    number: float = 0.0
    costs: tuple[float, ...] = ()


class _Remembering(Sound):
    """Changes what it remembers at the end of each trial."""

    hardware_memory: ClassVar[type[Any] | None] = Remembered

    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        """What it remembers next."""
        raise NotImplementedError

    @override
    def evolve(self, before: Job, after: Job, event: Any) -> Job:
        if not isinstance(event, TrialEnded | LateResult):
            return after
        trial = before.trials[event.trial_number]
        knowledge = after.knowledge_of(trial)
        memory = self.after(knowledge.memories.get(self.name, Remembered()), event)
        return after.with_knowledge(trial.version_number, knowledge.with_memory(self.name, memory))


class Misnamed(Sound):
    """Its name is not that of its entry point."""

    name = "somebody_else"


class Silent(Sound):
    """Gives no reason."""

    name = "silent"

    @override
    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        return replace(super().choose(job, recurrence, hardware), reason=" ")


class AlwaysBounding(Sound):
    """Stops the last attempt of a recurrence, too."""

    name = "alwaysbounding"

    @override
    def judge(self, job: Job, trial: Trial) -> Verdict:
        return judge_progress(job.spec_of(trial), trial, self.limit(job, trial))

    def limit(self, job: Job, trial: Trial) -> float | None:
        """The cost [J] above which it stops a trial, bounded or not."""
        del job, trial
        return 1.0


class Overfilling(Sound):
    """Offers again what has run out of memory."""

    name = "overfilling"

    @override
    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        return frozenset(job.version.spec.batch_sizes)


class Discouraged(Sound):
    """Offers nothing any more once each batch size has failed."""

    name = "discouraged"

    @override
    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        knowledge = job.version.knowledge_on(hardware)
        return frozenset(
            size for size in job.version.spec.batch_sizes if not knowledge.arm(size).not_converged_in_a_row
        )


class Interrupted(_Remembering):
    """Cannot bear that a training ends without a result."""

    name = "interrupted"

    @override
    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        return {Outcome.CONVERGED: memory, Outcome.COST_EXCEEDED: memory}[ended.outcome]


class Faithful(Sound):
    """Offers what has left the job."""

    name = "faithful"

    @override
    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        return frozenset({128})


class Provincial(Sound):
    """Knows one hardware kind."""

    name = "provincial"

    @override
    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        assert hardware.gpu_model == "A100"
        return super().offered(job, recurrence, hardware)


class Stingy(AlwaysBounding):
    """Stops what costs twice as much as the cheapest run, the last attempt of a recurrence included."""

    name = "stingy"

    @override
    def limit(self, job: Job, trial: Trial) -> float | None:
        reference = reference_of(job.knowledge_of(trial), job.spec_of(trial), frozenset())
        return None if reference is None else 2.0 * reference


class AtRandom(Sound):
    """Rolls dice."""

    name = "atrandom"

    @override
    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        return frozenset({random.choice(sorted(super().offered(job, recurrence, hardware)))})


class Reminiscent(_Remembering):
    """Counts calls in itself, whatever they are for: a fold of the log counts others."""

    name = "reminiscent"
    calls = 0

    @override
    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        Reminiscent.calls += 1
        return Remembered(number=self.calls)


class Boundless(_Remembering):
    """Keeps an infinity."""

    name = "boundless"

    @override
    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        return Remembered(number=float("inf"))


class Hoarding(_Remembering):
    """Keeps the cost of each trial."""

    name = "hoarding"

    @override
    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        return replace(memory, costs=(*memory.costs, ended.cost))


class Unclassified(Hoarding):
    """Does not say of which class its memory is, so that it comes back as it was parsed."""

    name = "unclassified"
    hardware_memory = None


class Undecided(Sound):
    """Knows no best batch size."""

    name = "undecided"

    @override
    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        return Outlook(best_batch_size=None, expected={})


BROKEN: dict[type[Sound], str] = {
    Misnamed: "it_is_found_under_its_name",
    Silent: "each_recurrence_ends_with_a_model_by_choices_that_say_why",
    AlwaysBounding: "the_last_attempt_of_a_recurrence_has_no_bound",
    Overfilling: "what_does_not_fit_is_not_tried_again_in_the_recurrence_while_something_else_is_left",
    Discouraged: "a_job_in_which_nothing_converges_still_gets_batch_sizes_and_recovers",
    Interrupted: "overlapping_recurrences_interruptions_and_cancellations_are_borne",
    Faithful: "batch_sizes_may_leave_and_join",
    Provincial: "other_hardware_another_version_and_a_batch_size_that_is_allowed_again",
    Stingy: "costs_that_have_doubled_do_not_end_the_models",
    AtRandom: "the_same_commands_give_the_same_choices",
    Reminiscent: "the_log_alone_gives_the_state",
    Boundless: "events_and_memory_are_json_without_infinities",
    Hoarding: "what_is_remembered_grows_with_the_batch_sizes_tried_and_not_with_the_trials",
    Unclassified: "the_same_commands_give_the_same_choices",
    Undecided: "it_says_where_a_job_stands",
}
"""Each with the rule that it breaks."""

_ALL: tuple[type[Sound], ...] = (Sound, *BROKEN)
INSTALLED = SimpleNamespace(**{one.__name__.lower(): one() for one in _ALL})
