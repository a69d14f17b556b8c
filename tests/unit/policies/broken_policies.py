"""A policy that keeps the contract, and for each of its rules one that breaks it."""

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from typing_extensions import override

from bso.domain.events import Event, LateResult, PolicyData, TrialEnded
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence, available
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, nearest
from bso.domain.policy import Choice, Expectation, Inherited, Outlook, Policy
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


_STOP = Verdict(outcome=Outcome.COST_EXCEEDED, reason="not worth it")


class Misnamed(Sound):
    """Its name is not that of its entry point."""

    name = "somebody_else"


@dataclass(frozen=True, slots=True, kw_only=True)
class TheBatchSizeWithTheLeastMeanCostIsAnother:
    """An event whose name as a message has 50 characters."""

    version_number: int
    sentence: str = ""


class Longwinded(Sound):
    """Has an event whose name the event table does not hold."""

    name = "longwinded"
    events = (TheBatchSizeWithTheLeastMeanCostIsAnother,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """An event whose name is that of an event of all policies."""

    version_number: int
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnded:
    """An event whose name is that of an event of the policy pruning_thompson."""

    version_number: int
    sentence: str = ""


class Usurping(Sound):
    """Has an event that is named as one of all policies."""

    name = "usurping"
    events = (ChangePoint,)


class Imitating(Sound):
    """Has an event that is named as one of another policy."""

    name = "imitating"
    events = (RoundEnded,)


class Silent(Sound):
    """Gives no reason."""

    name = "silent"

    @override
    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        return replace(super().choose(job, recurrence, hardware), reason=" ")


class Forgetful(Sound):
    """Learns nothing from the end of a trial, and leaves the end out."""

    name = "forgetful"

    @override
    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        return ()


class Literal(Sound):
    """Writes a bound in words."""

    name = "literal"

    @override
    def bound(self, job: Job, trial: Trial) -> float | None:
        return "5"  # type: ignore[return-value]  # that is the mistake


class Undefined(Sound):
    """Has a bound that is no number."""

    name = "undefined"

    @override
    def bound(self, job: Job, trial: Trial) -> float | None:
        return float("nan")


class Impatient(Sound):
    """Stops everything at its first report, but for the last attempt."""

    name = "impatient"

    @override
    def bound(self, job: Job, trial: Trial) -> float | None:
        return 0.0


class Disobedient(Sound):
    """Bounds trials of jobs that want no early stopping."""

    name = "disobedient"

    @override
    def bound(self, job: Job, trial: Trial) -> float | None:
        return 1e9


class Unreckoned(Sound):
    """Bounds trials of jobs without a beta_knob."""

    name = "unreckoned"

    @override
    def bound(self, job: Job, trial: Trial) -> float | None:
        return 1e9 if job.spec_of(trial).early_stopping else None


class AlwaysBounding(Sound):
    """Stops the last attempt of a recurrence, too."""

    name = "alwaysbounding"

    @override
    def judge(self, job: Job, trial: Trial) -> Verdict:
        return judge_progress(job.spec_of(trial), trial, 1.0)


class Overfilling(Sound):
    """Offers again what has run out of memory."""

    name = "overfilling"

    @override
    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        return frozenset(job.version.spec.batch_sizes)


class Discouraged(Sound):
    """Stops every trial of a batch size that has failed to converge three times in a row."""

    name = "discouraged"

    @override
    def judge(self, job: Job, trial: Trial) -> Verdict:
        is_hopeless = job.knowledge_of(trial).arm(trial.batch_size).not_converged_in_a_row >= 3
        return _STOP if is_hopeless else super().judge(job, trial)


class Interrupted(_Remembering):
    """Stops every trial once one has ended without a result."""

    name = "interrupted"

    @override
    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        has_result = ended.outcome not in {Outcome.INTERRUPTED, Outcome.CANCELLED}
        return memory if has_result else replace(memory, number=1.0)

    @override
    def judge(self, job: Job, trial: Trial) -> Verdict:
        memory = job.knowledge_of(trial).memories.get(self.name, Remembered())
        return _STOP if memory.number else super().judge(job, trial)


class Faithful(Sound):
    """Offers what has left the job."""

    name = "faithful"

    @override
    def offered(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> frozenset[int]:
        return frozenset({128})


class Provincial(Sound):
    """Stops every trial on hardware that it does not know."""

    name = "provincial"

    @override
    def judge(self, job: Job, trial: Trial) -> Verdict:
        return super().judge(job, trial) if trial.hardware.gpu_model == "A100" else _STOP


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


class Unclassified(_Remembering):
    """Does not say of which class its memory is, so that it comes back as it was parsed."""

    name = "unclassified"
    hardware_memory = None

    @override
    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        return Remembered()


class Fickle(_Remembering):
    """Remembers another number each time that an event is folded."""

    name = "fickle"

    @override
    def after(self, memory: Remembered, ended: TrialEnded | LateResult) -> Remembered:
        return Remembered(number=random.random())


class Bequeathing(Sound):
    """Hands on what it has no class for."""

    name = "bequeathing"

    @override
    def inherit(self, source: JobVersion, spec: JobSpec, *, is_sibling: bool) -> Inherited | None:
        return Inherited(on_hardware=dict.fromkeys(source.knowledge, 3))


class Misaddressing(Sound):
    """Hands on what is of no hardware kind."""

    name = "misaddressing"

    @override
    def inherit(self, source: JobVersion, spec: JobSpec, *, is_sibling: bool) -> Inherited | None:
        return Inherited(on_hardware={"x": 3})


class Exaggerating(Sound):
    """Learns an infinity."""

    name = "exaggerating"
    learnt = Remembered

    @override
    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        data = PolicyData(policy=self.name, data=Remembered(number=float("inf")))
        return (replace(ended, learnt=data),)


class Undecided(Sound):
    """Knows no best batch size."""

    name = "undecided"

    @override
    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        return Outlook(best_batch_size=None, expected={})


class Clueless(Sound):
    """Does not know how uncertain it is."""

    name = "clueless"

    @override
    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        expected = {16: Expectation(cost=5.0, deviation=float("nan"))}
        return replace(super().outlook(version, knowledge), expected=expected)


_NO_MODEL = r"recurrence night-\w+ ended without a model: .* as cost_exceeded \(not worth it"
_NAMES = "its_events_have_names_that_are_short_enough_and_not_taken"
_BOUND = "a_bound_is_no_less_than_what_the_cheapest_training_has_cost"
_NO_BOUND = "without_early_stopping_there_is_no_bound"
_INHERITS = "what_a_new_version_inherits_is_of_the_classes_of_its_memory"
_READ_AGAIN = "events_and_memory_are_json_and_are_read_again_as_they_were"

BROKEN: dict[type[Sound], tuple[str, str]] = {
    Misnamed: ("it_is_found_under_its_name", "expected an instance of .* whose name is 'misnamed'"),
    Longwinded: (_NAMES, "the_batch_size_with_the_least_mean_cost_is_another has 50 characters, more than 40"),
    Usurping: (_NAMES, r"change_point is already the name of <class 'bso\.domain\.events"),
    Imitating: (_NAMES, r"round_ended is already the name of <class 'bso\.policies\.pruning_thompson"),
    Silent: (
        "each_recurrence_ends_with_a_model_by_choices_that_say_why",
        "no reason was given for batch size 128",
    ),
    Forgetful: (
        "each_recurrence_ends_with_a_model_by_choices_that_say_why",
        "policy forgetful returned 0 ends of trials: learn has to return that of trial 1, once",
    ),
    Literal: (
        "each_recurrence_ends_with_a_model_by_choices_that_say_why",
        "policy literal: bound has to return a number of joules, or None, got '5'",
    ),
    Undefined: (
        "each_recurrence_ends_with_a_model_by_choices_that_say_why",
        "policy undefined: bound has to return a number of joules, or None, got nan",
    ),
    Impatient: (_BOUND, "the bound of trial 1 is 0 J: no training can be that cheap"),
    Disobedient: (_NO_BOUND, "trial 1 has a bound in spite of .*early_stopping.*False"),
    Unreckoned: (_NO_BOUND, "trial 1 has a bound in spite of .*beta_knob.*None"),
    AlwaysBounding: (
        "the_last_attempt_of_a_recurrence_is_not_stopped_for_its_cost",
        "the last attempt ended as cost_exceeded",
    ),
    Overfilling: (
        "what_does_not_fit_is_not_tried_again_in_the_recurrence_while_something_else_is_left",
        "batch size 128 was chosen after 128 ran out of memory",
    ),
    Discouraged: ("a_job_in_which_nothing_converges_still_gets_batch_sizes_and_recovers", _NO_MODEL),
    Interrupted: ("overlapping_recurrences_interruptions_and_cancellations_are_borne", _NO_MODEL),
    Faithful: ("batch_sizes_may_leave_and_join", "policy faithful chose batch size 128: .* one of the job's, 32, 512"),
    Provincial: ("other_hardware_another_version_and_a_batch_size_that_is_allowed_again", _NO_MODEL),
    AtRandom: ("the_same_commands_give_the_same_choices", "other choices were made"),
    Reminiscent: ("the_log_alone_gives_the_state", "gives another state"),
    Boundless: (_READ_AGAIN, "a number that is remembered is not finite"),
    Exaggerating: (_READ_AGAIN, r"a number is not finite: TrialEnded"),
    Unclassified: (_READ_AGAIN, "hardware_memory is not the class of what is remembered: it is None, and Remembered"),
    Fickle: (_READ_AGAIN, "the same log, folded twice, is remembered in two ways: see evolve"),
    Bequeathing: (_INHERITS, "hardware_memory is not the class of what is remembered: it is None, and 3 is remembered"),
    Misaddressing: (_INHERITS, "on_hardware names 'x', which is no key of source.knowledge"),
    Hoarding: (
        "what_is_remembered_grows_with_the_batch_sizes_tried_and_not_with_the_trials",
        r"\d+ characters more",
    ),
    Undecided: ("it_says_where_a_job_stands", "the best batch size is said to be None"),
    Clueless: ("it_says_where_a_job_stands", "outlook has no finite cost and deviation of batch size 16"),
}
"""Each with the rule that it breaks, and what that test says of it."""

_ALL: tuple[type[Sound], ...] = (Sound, *BROKEN)
INSTALLED = SimpleNamespace(**{one.__name__.lower(): one() for one in _ALL})
