"""A recurring training job, the aggregate that commands are decided on, and its recurrences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge, feasible
from bso.domain.learning_rate import LearningRate
from bso.domain.ledger import Ledger
from bso.domain.rights import Right
from bso.domain.trial import Trial, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """An open recurrence. It ends with a converged trial, when its last attempt has failed, or when it is abandoned.

    ``aborts`` counts its trials that failed (interrupted and cancelled ones have not), ``failed`` are their batch
    sizes. ``out_of_memory_from`` gives, by key of the hardware kind, the smallest batch size that ran out of memory.
    """

    recurrence_id: str
    recurrence_number: int
    aborts: int = 0
    failed: frozenset[int] = frozenset()
    out_of_memory_from: Mapping[str, int] = field(default_factory=dict)

    def is_on_last_attempt(self, spec: JobSpec) -> bool:
        """Whether the recurrence ends with its next trial, also if that fails."""
        return self.aborts + 1 >= spec.max_attempts

    def may_fit(self, batch_size: int, hardware_key: str) -> bool:
        """Whether neither the batch size nor a smaller one ran out of memory in this recurrence."""
        ceiling = self.out_of_memory_from.get(hardware_key)
        return ceiling is None or batch_size < ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVersion:
    """One identity of the job, and what was learnt under it, by key of the hardware kind.

    ``learning_rate`` is that of the last trial which named one. ``memories`` holds what each policy remembers of the
    version on whatever hardware, by its name.
    """

    version_number: int
    spec: JobSpec
    seed: int
    knowledge: Mapping[str, Knowledge] = field(default_factory=dict)
    learning_rate: LearningRate | None = None
    memories: Mapping[str, Any] = field(default_factory=dict)

    def knowledge_on(self, hardware: HardwareKind) -> Knowledge:
        """What is known on a hardware kind; fresh where nothing is."""
        found = self.knowledge.get(hardware.key)
        return found if found is not None else Knowledge(hardware=hardware)

    def with_memory(self, policy: str, memory: object) -> JobVersion:
        """The version with what a policy remembers replaced."""
        return replace(self, memories={**self.memories, policy: memory})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnacknowledgedStop:
    """A stop that its training may not know of: the reply to its report may be lost.

    ``knowledge`` and ``memories`` are what was known before it; None: other results of the version have come since.
    """

    version_number: int
    knowledge: Knowledge | None
    memories: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The whole state of a job. ``last_seq`` numbers its events, ``trials`` holds those that are loaded.

    Active trials are always loaded; ended ones only where a command asked for one, or where a log was folded from
    its beginning. A deleted job is a tombstone: its numbers go on when it is registered again.
    ``unacknowledged_stops``, by trial number, are the last stops that trainings have not acknowledged.
    ``has_power_profiles``: some batch size was measured under several power limits; those are loaded where needed.
    ``grants`` are what other logins than the owner's may do. ``hardware`` and ``job_id_prefix`` are what it was
    registered with; no hardware: its trials say what they run on. ``ledger``: what its trials took in each month.
    """

    job_id: str
    last_seq: int = 0
    last_trial_number: int = 0
    last_recurrence_number: int = 0
    owner: str | None = None
    grants: Mapping[str, Right] = field(default_factory=dict)
    hardware: HardwareKind | None = None
    job_id_prefix: str = "job"
    is_deleted: bool = False
    current_version: int = 0
    versions: Mapping[int, JobVersion] = field(default_factory=dict)
    recurrences: Mapping[str, Recurrence] = field(default_factory=dict)
    trials: Mapping[int, Trial] = field(default_factory=dict)
    unacknowledged_stops: Mapping[int, UnacknowledgedStop] = field(default_factory=dict)
    has_power_profiles: bool = False
    ledger: Ledger = Ledger()

    @property
    def version(self) -> JobVersion:
        """The version that new trials belong to."""
        return self.versions[self.current_version]

    @property
    def spec(self) -> JobSpec:
        """The specification of the current version."""
        return self.version.spec

    @property
    def is_registered(self) -> bool:
        """Whether trials may begin."""
        return bool(self.versions) and not self.is_deleted

    def awaits_result(self, trial: Trial) -> bool:
        """Whether what a training says of its end may still change what is recorded of its trial."""
        return trial.is_active or trial.may_report_late or trial.trial_number in self.unacknowledged_stops

    def active_trials(self) -> tuple[Trial, ...]:
        """The trials that have not ended, in order of their numbers."""
        return tuple(self.trials[number] for number in sorted(self.trials) if self.trials[number].is_active)

    def running_trials(self, version_number: int) -> tuple[Trial, ...]:
        """The running trials of a version on whatever hardware, in order of their numbers."""
        return tuple(
            trial
            for trial in self.active_trials()
            if trial.state is TrialState.RUNNING and trial.version_number == version_number
        )

    def running_on(self, version_number: int, hardware: HardwareKind) -> tuple[int, ...]:
        """The batch sizes of the running trials of a version on a hardware kind."""
        trials = self.running_trials(version_number)
        return tuple(trial.batch_size for trial in trials if trial.hardware.key == hardware.key)

    def knowledge_of(self, trial: Trial) -> Knowledge:
        """What is known where a trial belongs."""
        return self.versions[trial.version_number].knowledge_on(trial.hardware)

    def spec_of(self, trial: Trial) -> JobSpec:
        """The specification that a trial runs under."""
        return self.versions[trial.version_number].spec

    def with_trial(self, trial: Trial) -> Job:
        """The job with a trial added or replaced."""
        return replace(self, trials={**self.trials, trial.trial_number: trial})

    def with_version(self, version: JobVersion) -> Job:
        """The job with a version added or replaced."""
        return replace(self, versions={**self.versions, version.version_number: version})

    def with_knowledge(self, version_number: int, knowledge: Knowledge) -> Job:
        """The job with the knowledge of one version on one hardware kind replaced."""
        version = self.versions[version_number]
        known = {**version.knowledge, knowledge.hardware.key: knowledge}
        return self.with_version(replace(version, knowledge=known))

    def without_ended_trials(self) -> Job:
        """The job as it is stored: ended trials live in their own table."""
        return replace(self, trials={trial.trial_number: trial for trial in self.active_trials()})


def available(knowledge: Knowledge, spec: JobSpec, recurrence: Recurrence) -> frozenset[int]:
    """The batch sizes that fit, as far as possible without what has failed in the recurrence, or rests; never empty."""
    sizes = fitting(knowledge, spec, recurrence)
    return awake(knowledge, sizes - recurrence.failed or sizes)


def fitting(knowledge: Knowledge, spec: JobSpec, recurrence: Recurrence | None) -> frozenset[int]:
    """The feasible batch sizes that need not run out of memory in a recurrence (None: in any); never empty.

    Where even the smallest one ran out of memory, that one: a larger one fits still less.
    """
    sizes, key = feasible(knowledge, spec), knowledge.hardware.key
    if recurrence is None:
        return sizes
    return frozenset(size for size in sizes if recurrence.may_fit(size, key)) or frozenset({min(sizes)})


def awake(knowledge: Knowledge, batch_sizes: frozenset[int]) -> frozenset[int]:
    """Those of the batch sizes that do not rest after interruptions; all if each of them rests."""
    return frozenset(size for size in batch_sizes if not knowledge.arm(size).is_resting) or batch_sizes
