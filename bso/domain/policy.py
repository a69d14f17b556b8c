"""The seam between the life of a job and the rules that decide for it.

A policy is a few pure functions over the job's state. It neither stores nor sends anything: what it decides comes
back with a reason that a user understands, what it learns comes back as events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bso.domain.events import Event, LateResult, TrialEnded
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job, JobVersion, Recurrence
from bso.domain.knowledge import Knowledge
from bso.domain.replies import Confidence
from bso.domain.trial import Outcome, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The batch size of the next trial. An unbounded trial is never stopped because of its cost.

    ``is_second_look``: it runs on up to its bound although it looks expensive, as some must.
    """

    batch_size: int
    reason: str
    is_unbounded: bool = False
    is_second_look: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a trial goes on (outcome None) or how it ends, and why."""

    outcome: Outcome | None
    reason: str


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


class Policy(Protocol):
    """Decides for a job. Implementations hold no state."""

    def choose(self, job: Job, recurrence: Recurrence, hardware: HardwareKind) -> Choice:
        """The batch size for the next trial of a recurrence, of the job's current version."""
        ...

    def bound(self, job: Job, trial: Trial) -> float | None:
        """The cost [J] above which the trial is stopped; None: there is none."""
        ...

    def judge(self, job: Job, trial: Trial) -> Verdict:
        """Whether a running trial goes on, after its latest report."""
        ...

    def learn(self, job: Job, trial: Trial, ended: TrialEnded | LateResult) -> tuple[Event, ...]:
        """All events of the end of a trial, in order, ``ended`` itself included.

        ``ended`` comes complete but for ``is_failure``, ``learnt_cost`` and ``learnt_curve``, which are the policy's.
        """
        ...

    def outlook(self, version: JobVersion, knowledge: Knowledge) -> Outlook:
        """What is believed of the costs of the batch sizes on a hardware kind, for people to read."""
        ...

    def confidence(self, version: JobVersion, knowledge: Knowledge, best: int) -> Confidence | None:
        """How sure it is that ``best`` is the best batch size on a hardware kind; None: the policy does not say."""
        ...
