"""The trainings that a job's log tells of: how long they took, what an epoch of them took, and how they ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from bso.domain.commands import PowerMeasurement
from bso.domain.cost import cost_of, is_all_profiled
from bso.domain.errors import Rejected
from bso.domain.hardware import HardwareKind
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.trial import Outcome, Trial
from bso.replay.fold import Folding

CONVERGED_RUNS_NEEDED = 2
"""Converged trainings of a batch size without which nothing is said of it."""


class NotRecorded(Rejected):
    """The record does not hold what is asked about; the message says what it does hold."""


class End(Enum):
    """What the end of a training says of the epochs to its target."""

    CONVERGED = "converged"  # it took exactly so many
    CENSORED = "censored"  # it ended before: it would have taken more
    FAILED = "failed"  # it would not have got there within max_epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One training of which something is known. ``reports`` came in ``epochs`` (a float).

    ``priced_epochs`` of them took ``time_s`` and ``energy_j`` on the hardware that is asked about, without power
    limits being profiled; 0 for trainings on other hardware, and where the energy was not measured throughout. A job
    whose eta_knob is 0 needs no energy: there ``is_energy_measured`` is False, and ``energy_j`` 0, where it was not.
    """

    batch_size: int
    end: End
    epochs: float
    reports: int
    priced_epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    is_energy_measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What a trial really took, profiling and all."""

    batch_size: int
    has_converged: bool
    time_s: float
    energy_j: float

    def cost(self, *, eta_knob: float, max_power_w: float) -> float:
        """Both as one cost [J]."""
        return cost_of(energy_j=self.energy_j, time_s=self.time_s, eta_knob=eta_knob, max_power_w=max_power_w)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is recorded of one version of a job, to be asked what would have been on one hardware kind.

    ``runs`` are those on any hardware, since epochs to the target do not depend on it; ``paid`` are the trials on this
    kind, in order. ``measurements`` are power profiles of this kind by batch size. ``untold_trials`` counts trials of
    the job that ended before its log begins.
    """

    job_id: str
    version_number: int
    spec: JobSpec
    hardware: HardwareKind
    runs: tuple[RecordedRun, ...]
    paid: tuple[Paid, ...]
    measurements: Mapping[int, tuple[PowerMeasurement, ...]] = field(default_factory=dict)
    untold_trials: int = 0

    @property
    def tried_batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes of which any trial is recorded, ascending."""
        return tuple(sorted({run.batch_size for run in self.runs} | {trial.batch_size for trial in self.paid}))

    @property
    def known_batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes of which enough is recorded to say what they cost, ascending."""
        return tuple(size for size in self.tried_batch_sizes if self.why_unknown(size) is None)

    @property
    def models(self) -> int:
        """Recorded recurrences that got their model on this hardware."""
        return sum(trial.has_converged for trial in self.paid)

    def paid_for(self, *, eta_knob: float, batch_sizes: Collection[int] | None = None) -> float:
        """What the recorded trials cost [J]; those of some batch sizes alone, if any are named."""
        return sum(
            trial.cost(eta_knob=eta_knob, max_power_w=self.hardware.max_power_w)
            for trial in self.paid
            if batch_sizes is None or trial.batch_size in batch_sizes
        )

    def has_energy(self, batch_sizes: Collection[int]) -> bool:
        """Whether it is known of each of these batch sizes what energy its epochs take on this hardware."""
        return all(
            any(run.priced_epochs and run.is_energy_measured for run in self.runs_of(size)) for size in batch_sizes
        )

    def runs_of(self, batch_size: int) -> tuple[RecordedRun, ...]:
        """The trainings of one batch size."""
        return tuple(run for run in self.runs if run.batch_size == batch_size)

    def count(self, batch_size: int, end: End) -> int:
        """How many trainings of a batch size ended so."""
        return sum(run.end is end for run in self.runs_of(batch_size))

    def why_unknown(self, batch_size: int) -> str | None:
        """Why nothing can be said of a batch size, after its name and a colon; None: something can."""
        if batch_size not in self.tried_batch_sizes:
            return "never tried"
        converged = self.count(batch_size, End.CONVERGED)
        if converged < CONVERGED_RUNS_NEEDED:
            return f"{converged or 'no'} converged {'training' if converged == 1 else 'trainings'}"
        if not any(run.priced_epochs for run in self.runs_of(batch_size)):
            return f"no epoch {'' if self.spec.eta_knob == 0.0 else 'with its energy '}measured on this hardware"
        return None


def record_of(folding: Folding, *, version_number: int | None = None, hardware: str | None = None) -> Record:
    """What a folded log records of a job; of its current version and the best known hardware, unless said otherwise.

    ``hardware`` is the key of a kind, or a part of its description. Raises NotRecorded.
    """
    job = folding.job
    if not job.is_registered:
        raise NotRecorded(f"job {job.job_id} is deleted")
    number = job.current_version if version_number is None else version_number
    if number not in job.versions:
        versions = ", ".join(map(str, sorted(job.versions)))
        raise NotRecorded(f"job {job.job_id} has no version {number}; it has {versions}")
    of_version = [trial for _, trial in sorted(folding.trials.items()) if trial.version_number == number]
    if not of_version:
        raise NotRecorded(f"no trial of {_version_of(job, number)} is recorded{_elsewhere(folding, number)}")
    kind = _hardware(of_version, hardware)
    spec = job.versions[number].spec
    profiles = [kept.profile for kept in folding.profiles.values() if kept.profile.hardware.key == kind.key]
    return Record(
        job_id=job.job_id,
        version_number=number,
        spec=spec,
        hardware=kind,
        runs=tuple(_runs(of_version, spec, kind)),
        paid=tuple(_paid(trial) for trial in of_version if trial.hardware.key == kind.key),
        measurements={profile.batch_size: profile.measurements for profile in profiles},
        untold_trials=folding.trials_before,
    )


def _version_of(job: Job, number: int) -> str:
    return f"version {number} of job {job.job_id}" if len(job.versions) > 1 else f"job {job.job_id}"


def _elsewhere(folding: Folding, number: int) -> str:
    others = sorted(
        {trial.version_number for trial in folding.trials.values()} & folding.job.versions.keys() - {number}
    )
    return f"; there are trials of version {', '.join(map(str, others))}" if others else ""


def _hardware(trials: Sequence[Trial], wanted: str | None) -> HardwareKind:
    """The kind that is asked for, else that of the most converged trials, and of these the one used last."""
    kinds = {trial.hardware.key: trial.hardware for trial in trials}
    if wanted is None:
        order = {trial.hardware.key: trial.trial_number for trial in trials}
        return max(kinds.values(), key=lambda kind: (_models_on(trials, kind), order[kind.key]))
    found = [kind for key, kind in kinds.items() if key == wanted or wanted.lower() in kind.describe().lower()]
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{kind.key}: {kind.describe()}" for kind in found or kinds.values())
    which = "is several kinds" if found else "is none"
    raise NotRecorded(f"hardware {wanted!r} {which} of those that trials of the job ran on: {listed}")


def _models_on(trials: Iterable[Trial], kind: HardwareKind) -> int:
    return sum(_has_converged(trial) for trial in trials if trial.hardware.key == kind.key)


def _has_converged(trial: Trial) -> bool:
    return (trial.late_outcome or trial.outcome) is Outcome.CONVERGED


def _paid(trial: Trial) -> Paid:
    return Paid(
        batch_size=trial.batch_size,
        has_converged=_has_converged(trial),
        time_s=trial.time_s,
        energy_j=trial.energy_j,
    )


def _runs(trials: Iterable[Trial], spec: JobSpec, kind: HardwareKind) -> Iterable[RecordedRun]:
    for trial in trials:
        if not trial.epoch:
            continue  # it says nothing of epochs
        end = _end(trial, spec)
        is_priced = (
            trial.hardware.key == kind.key
            and (trial.is_energy_complete or spec.eta_knob == 0.0)
            and not is_all_profiled(trial.epoch, trial.profiled)
            and trial.time_s > trial.profiled.time_s
        )
        yield RecordedRun(
            batch_size=trial.batch_size,
            end=end,
            epochs=spec.max_epochs if end is End.FAILED else trial.epoch,
            reports=max(1, trial.reports),
            priced_epochs=trial.epoch - trial.profiled.epochs if is_priced else 0.0,
            time_s=trial.time_s - trial.profiled.time_s if is_priced else 0.0,
            energy_j=max(0.0, trial.energy_j - trial.profiled.energy_j)
            if is_priced and trial.is_energy_complete
            else 0.0,
            is_energy_measured=trial.is_energy_complete,
        )


def _end(trial: Trial, spec: JobSpec) -> End:
    """A training that is under way, or was ended from outside, needs more epochs than it had, as a stopped one does."""
    if _has_converged(trial):
        before = trial.epoch - trial.epoch / max(1, trial.reports)
        return End.FAILED if before >= spec.max_epochs else End.CONVERGED  # the limit was higher then
    gave_up = (trial.late_outcome or trial.outcome) is Outcome.NOT_CONVERGED
    return End.FAILED if gave_up or trial.epoch >= spec.max_epochs else End.CENSORED
