"""Registering a job, and changing what is registered."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from bso.domain.commands import OnConflict, RegisterJob
from bso.domain.decide.decision import Context, Decision, apply, refused, unchanged
from bso.domain.events import JobRegistered, JobRespecified
from bso.domain.job import Job, JobVersion
from bso.domain.job_spec import IDENTITY_FIELDS, InvalidSpec, JobSpec, resolve_spec
from bso.domain.randomness import seed_from
from bso.domain.replies import Registered


def register_job(job: Job, command: RegisterJob, context: Context) -> Decision:
    """Register a job; register again what changed; do nothing if nothing did."""
    try:
        if not job.is_registered:
            return _first(job, resolve_spec(command.spec), context)
        spec = resolve_spec(command.spec, job.spec)
        if spec.identity == job.spec.identity:
            return _respecify(job, job.version, spec)
        if command.on_conflict is OnConflict.RAISE:
            return _conflict(job, spec)
        return _other_version(job, command, spec, context)
    except InvalidSpec as invalid:
        return refused(job, "invalid_spec", "The job specification is not valid", str(invalid), dict(invalid.problems))


def _first(job: Job, spec: JobSpec, context: Context) -> Decision:
    event = JobRegistered(
        version_number=job.current_version + 1, spec=spec, seed=_seed(spec, context), owner=context.user
    )
    reply = Registered(job_id=job.job_id, version_number=event.version_number, is_new=True, spec=spec)
    return Decision(job=apply(job, [event]), events=(event,), reply=reply)


def _respecify(job: Job, version: JobVersion, spec: JobSpec, warnings: tuple[str, ...] = ()) -> Decision:
    number = version.version_number
    reply = Registered(job_id=job.job_id, version_number=number, is_new=False, spec=spec, warnings=warnings)
    if spec == version.spec and number == job.current_version:
        return unchanged(job, reply)
    seed = version.seed if spec.mab_seed is None else spec.mab_seed
    event = JobRespecified(version_number=number, spec=spec, seed=seed)
    return Decision(job=apply(job, [event]), events=(event,), reply=reply)


def _other_version(job: Job, command: RegisterJob, spec: JobSpec, context: Context) -> Decision:
    fields = _differing(job.spec, spec)
    differing = f"{', '.join(fields)} {'differs' if len(fields) == 1 else 'differ'}"
    for version in job.versions.values():
        if version.spec.identity == spec.identity:
            words = f"{differing}: version {version.version_number} of job {job.job_id} is resumed"
            return _respecify(job, version, resolve_spec(command.spec, version.spec), (words,))
    number = max(job.versions) + 1
    warning = (
        f"{differing} from version {job.current_version} of job {job.job_id}: version {number} starts to learn from "
        "nothing; register with the old values to go back"
    )
    event = JobRespecified(version_number=number, spec=spec, seed=_seed(spec, context))
    reply = Registered(job_id=job.job_id, version_number=number, is_new=True, spec=spec, warnings=(warning,))
    return Decision(job=apply(job, [event]), events=(event,), reply=reply)


def _conflict(job: Job, spec: JobSpec) -> Decision:
    recorded, asked = asdict(job.spec), asdict(spec)
    fields = {name: f"is {recorded[name]!r}, got {asked[name]!r}" for name in _differing(job.spec, spec)}
    told = "; ".join(f"{name} {difference}" for name, difference in fields.items())
    detail = (
        f"job {job.job_id} is registered with other values: {told}; go back to those, take another job_id, or pass "
        'on_conflict="new_version": the job then gets another version, which `version` may name, and keeps the old one'
    )
    return refused(job, "job_conflict", "The job is registered with another identity", detail, fields)


def _differing(recorded: JobSpec, asked: JobSpec) -> list[str]:
    one: dict[str, Any] = asdict(recorded)
    other: dict[str, Any] = asdict(asked)
    return [name for name in IDENTITY_FIELDS if one[name] != other[name]]


def _seed(spec: JobSpec, context: Context) -> int:
    return seed_from(context.command_id) if spec.mab_seed is None else spec.mab_seed
