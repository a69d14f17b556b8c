"""The seam between the life of a job and the rules that decide for it.

A policy is a few pure functions over the job's state. It neither stores nor sends anything: what it decides comes
back with a reason that a user understands, what it learns comes back as events, and what it remembers is a frozen value
of its own in the state of the job, changed by nothing but events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bso.domain.events import Event, LateResult, TrialEnded
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, cheapest_known, feasible
from bso.domain.progress import Verdict, judge_progress
from bso.domain.replies import Confidence
from bso.domain.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The batch size of the next trial. An unbounded trial is never stopped because of its cost.

    The last attempt of a recurrence is unbounded in any case. ``mark`` is a word that the policy wants to find in the
    event of the trial's start; empty: none.
    """

    batch_size: int
    reason: str
    is_unbounded: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a run of a batch size is believed to cost on the average [J], and the standard deviation of that belief."""

    cost: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is believed on one hardware kind. ``expected`` has the batch sizes of which anything is believed."""

    best_batch_size: int | None
    expected: Mapping[int, Expectation]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmStatus:
    """Where a batch size stands, in one word or two, and why it is not offered at present (empty: it is).

    ``arm``: it may be chosen.
    """

    status: str
    note: str = ""

    @classmethod
    def excluded(cls, misses: int) -> ArmStatus:
        """Not offered, after so many trials in a row that did not converge."""
        return cls(status="excluded", note=f"did not converge in {misses} trials in a row")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStage:
    """The stage that a policy is in on a hardware kind, for people, and which round of it."""

    name: str
    round_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What a new version or job remembers before its first run.

    ``memory`` is that of the version, of the class ``version_memory``; None: nothing. ``on_hardware`` has those of the
    class ``hardware_memory``, by key of the hardware kind. ``batch_sizes`` are those that it knows something about.
    """

    memory: object = None
    on_hardware: Mapping[str, object] = field(default_factory=dict)
    batch_sizes: frozenset[int] = frozenset()


class Policy(ABC):
    """Decides for a job. Implementations hold no state; only ``choose`` has no default.

    ``name`` is that of the specification. ``version_memory`` and ``hardware_memory`` are the classes of what is
    remembered of a version of a job and of it on one hardware kind, under ``name`` in ``memories``; ``learnt`` is the
    class of what the policy fits to the end of a trial, ``events`` are events of its own (see bso.domain.events). All
    of them are dataclasses that pydantic can read again from the JSON that it writes of them. ``about_costs`` says in a
    sentence what the expected costs of ``outlook`` are.
    """

    name: ClassVar[str]
    version_memory: ClassVar[type[Any] | None] = None
    hardware_memory: ClassVar[type[Any] | None] = None
    learnt: ClassVar[type[Any] | None] = None
    events: ClassVar[tuple[type[Any], ...]] = ()
    about_costs: ClassVar[str] = ""

    @abstractmethod
    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        """The batch size for the next trial of a recurrence, of the job's current version."""

    def to_probe(self, version: JobVersion, knowledge: Knowledge, batch_size: int) -> tuple[int, ...]:
        """The batch sizes whose epoch costs a trial with ``batch_size`` should probe, the most wanted first."""
        del version, knowledge, batch_size
        return ()

    def bound(self, job: Job, trial: Trial) -> float | None:
        """The cost [J] above which the trial is stopped; None: there is none. Not called for an unbounded trial."""
        del job, trial
        return None

    def judge(self, job: Job, trial: Trial) -> Verdict:
        """Whether a running trial goes on, after its latest report. ``trial.bound`` is the one before that report."""
        return judge_progress(job.spec_of(trial), trial, trial.bound)

    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        """All events of the end of a trial, in order, ``ended`` itself included.

        ``learnt`` is the policy's to add, and it may count other ends as failures (``is_failure``).
        """
        del job, trial
        return (ended,)

    def evolve(self, before: Job, after: Job, event: Any) -> Job:
        """The job ``after`` an event, as far as all policies have it in common, with what this one remembers of it.

        Called for the start, each report and the end of a trial, a late result, a withdrawn stop, a change point,
        probed epoch costs, a batch size that was allowed, and the policy's own events. It copies and adds; nothing is
        decided here.
        """
        del before, event
        return after

    def excluded(self, knowledge: Knowledge) -> frozenset[int]:
        """The batch sizes that are not offered any more on a hardware kind, other than those that cannot run."""
        del knowledge
        return _NONE

    def has_converged(self, version: JobVersion, knowledge: Knowledge, batch_size: int) -> bool:
        """Whether a batch size has converged in a version, also before a change point if the policy remembers that."""
        del version
        return knowledge.arm(batch_size).convergences > 0

    def inherit(self, source: JobVersion, spec: JobSpec, *, is_sibling: bool) -> Inherited | None:
        """What a version with this specification takes over from another one under the same policy; None: nothing.

        ``is_sibling``: that one is of another job, which was named for it.
        """
        del source, spec, is_sibling
        return None

    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        """What is believed of the costs of the batch sizes on a hardware kind, for people to read."""
        usable = feasible(knowledge, version.spec) - self.excluded(knowledge)
        return Outlook(best_batch_size=cheapest_known(knowledge, version.spec, usable), expected={})

    def confidence(self, version: JobVersion, knowledge: Knowledge, best: int) -> Confidence | None:
        """How sure it is that ``best`` is the best batch size on a hardware kind; None: the policy does not say."""
        del version, knowledge, best
        return None

    def stage(self, version: JobVersion, knowledge: Knowledge) -> PolicyStage | None:
        """The stage that the policy is in on a hardware kind; None: it has no stages."""
        del version, knowledge
        return None

    def standing(self, version: JobVersion, knowledge: Knowledge, batch_size: int, *, is_running: bool) -> ArmStatus:
        """Where a batch size that can run stands."""
        del version, knowledge, batch_size, is_running
        return ArmStatus(status="arm")


_NONE = frozenset[int]()
