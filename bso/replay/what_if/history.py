"""A folded log as a record of trainings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bso.domain.hardware import HardwareKind
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.progress import is_all_profiled
from bso.domain.trial import Outcome, Trial
from bso.replay.fold import Folding
from bso.replay.what_if.record import End, NotRecorded, Record, RecordedRun, has_converged


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
    paid = tuple(trial for trial in of_version if trial.hardware.key == kind.key)
    too_large = {trial.batch_size for trial in paid if trial.outcome is Outcome.INFEASIBLE}
    profiles = [kept.profile for kept in folding.profiles.values() if kept.profile.hardware.key == kind.key]
    return Record(
        job_id=job.job_id,
        version_number=number,
        spec=spec,
        hardware=kind,
        runs=tuple(_run(trial, spec, kind) for trial in of_version if trial.epoch),
        paid=paid,
        measurements={profile.batch_size: profile.measurements for profile in profiles},
        infeasible=frozenset(too_large - {trial.batch_size for trial in paid if has_converged(trial)}),
        earlier_trials=folding.trials_before,
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
    return sum(has_converged(trial) for trial in trials if trial.hardware.key == kind.key)


def _run(trial: Trial, spec: JobSpec, kind: HardwareKind) -> RecordedRun:
    end = _end(trial, spec)
    is_priced = (
        trial.hardware.key == kind.key
        and trial.has_measured_cost(spec)
        and not is_all_profiled(trial.epoch, trial.profiled)
        and trial.time_s > trial.profiled.time_s
    )
    is_metered = is_priced and trial.is_energy_complete
    return RecordedRun(
        batch_size=trial.batch_size,
        end=end,
        epochs=spec.max_epochs if end is End.FAILED else trial.epoch,
        reports=max(1, trial.reports),
        priced_epochs=trial.epoch - trial.profiled.epochs if is_priced else 0.0,
        time_s=trial.time_s - trial.profiled.time_s if is_priced else 0.0,
        energy_j=max(0.0, trial.energy_j - trial.profiled.energy_j) if is_metered else 0.0,
        is_energy_measured=trial.is_energy_complete,
    )


def _end(trial: Trial, spec: JobSpec) -> End:
    """A training that is under way, or was ended from outside, needs more epochs than it had, as a stopped one does."""
    if has_converged(trial):
        before = trial.epoch - trial.epoch / max(1, trial.reports)
        return End.FAILED if before >= spec.max_epochs else End.CONVERGED  # the limit was higher then
    gave_up = (trial.late_outcome or trial.outcome) is Outcome.NOT_CONVERGED
    return End.FAILED if gave_up or trial.epoch >= spec.max_epochs else End.CENSORED
