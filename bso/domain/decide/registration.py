"""Registering a job, and changing what is registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from bso.domain.commands import OnConflict, RegisterJob
from bso.domain.decide.contract import (
    Context,
    Decision,
    Facts,
    is_one_more,
    one_job_too_many,
    refused,
    refused_for,
    unchanged,
)
from bso.domain.decide.growth import nearly_outgrown, outgrown
from bso.domain.events import JobRegistered, JobRespecified
from bso.domain.evolve import apply
from bso.domain.hardware import HardwareKind, hardware_problems
from bso.domain.identifiers import identifier_problem
from bso.domain.inheritance import Inheritance, inheritance_from
from bso.domain.job import Job, JobVersion
from bso.domain.job_spec import IDENTITY_FIELDS, InvalidSpec, JobSpec, resolve_spec
from bso.domain.policies import policy_named
from bso.domain.randomness import seed_from
from bso.domain.replies import Registered

_Described = TypeVar("_Described", JobSpec, HardwareKind)


def register_job(job: Job, command: RegisterJob, facts: Facts, context: Context) -> Decision:
    """Register a job; register again what changed; do nothing if nothing did."""
    if problems := _problems(command):
        return refused_for(job, "invalid_registration", "The job cannot be registered like this", problems)
    if command.is_late and job.is_deleted:
        return refused(job, "unknown_job", "The job is unknown", f"job {job.job_id} was deleted: register it again")
    try:
        if not job.is_registered:
            spec = _limited(_resolved(command), (), context)
            problem = one_job_too_many(context.user, facts, context) if is_one_more(job, context.user) else None
            return _first(job, command, spec, facts, context) if problem is None else unchanged(job, problem)
        if command.on_conflict is OnConflict.REFUSE_CHANGES:
            return _unchanged_or_refused(job, command)
        spec = _resolved(command, job.spec)
        if spec.identity == job.spec.identity:
            return _respecify(job, job.version, _limited(spec, job.spec.batch_sizes, context))
        if command.on_conflict is OnConflict.RAISE:
            return _conflict(job, spec)
        return _other_version(job, command, spec, facts, context)
    except InvalidSpec as invalid:
        return refused(job, "invalid_spec", "The job specification is not valid", str(invalid), dict(invalid.problems))


def _resolved(command: RegisterJob, recorded: JobSpec | None = None) -> JobSpec:
    """The complete specification, whose policy is installed here. Raises InvalidSpec, PolicyMissing."""
    spec = resolve_spec(command.spec if recorded else {**command.defaults, **command.spec}, recorded)
    policy_named(spec.policy)
    return spec


def _limited(spec: JobSpec, known: Sequence[int], context: Context) -> JobSpec:
    """The specification, unless it names more batch sizes than are allowed, and other ones than before."""
    most = context.rules.quota_of(context.user).batch_sizes or context.rules.max_batch_sizes
    if len(spec.batch_sizes) <= most or spec.batch_sizes == known:
        return spec
    problem = f"must be at most {most}, got {len(spec.batch_sizes)}: each choice takes longer the more there are"
    raise InvalidSpec({"batch_sizes": problem})


def _problems(command: RegisterJob) -> dict[str, str]:
    if command.hardware is not None and (problems := hardware_problems(command.hardware)):
        return problems
    if command.like is None:
        return {}
    if problem := identifier_problem(command.like):
        return {"like": problem}
    return {} if command.inherit else {"like": f"names job {command.like} to inherit from, but inherit is false"}


def _first(job: Job, command: RegisterJob, spec: JobSpec, facts: Facts, context: Context) -> Decision:
    inherited = _inherited(job, command, spec, facts.other_job)
    event = JobRegistered(
        version_number=job.current_version + 1,
        spec=spec,
        seed=_seed(spec, context),
        owner=context.user,
        inherited=inherited,
        hardware=command.hardware,
        job_id_prefix=command.job_id_prefix,
    )
    warnings = () if inherited or command.like is None else (_nothing_from(command.like, spec, facts.other_job),)
    reply = Registered(
        job_id=job.job_id, version_number=event.version_number, is_new=True, spec=spec, warnings=warnings
    )
    return Decision(job=apply(job, [event]), events=(event,), reply=reply)


def _respecify(job: Job, version: JobVersion, spec: JobSpec, warnings: tuple[str, ...] = ()) -> Decision:
    number = version.version_number
    reply = Registered(job_id=job.job_id, version_number=number, is_new=False, spec=spec, warnings=warnings)
    if spec == version.spec and number == job.current_version:
        return unchanged(job, reply)
    seed = version.seed if spec.mab_seed is None else spec.mab_seed
    event = JobRespecified(version_number=number, spec=spec, seed=seed)
    return Decision(job=apply(job, [event]), events=(event,), reply=reply)


def _other_version(job: Job, command: RegisterJob, spec: JobSpec, facts: Facts, context: Context) -> Decision:
    fields = _differing(job.spec, spec)
    differing = f"{', '.join(fields)} {'differs' if len(fields) == 1 else 'differ'}"
    for version in job.versions.values():
        if version.spec.identity == spec.identity:
            words = f"{differing}: version {version.version_number} of job {job.job_id} is resumed"
            spec = _limited(_resolved(command, version.spec), version.spec.batch_sizes, context)
            return _respecify(job, version, spec, (words,))
    spec = _limited(spec, job.spec.batch_sizes, context)
    number = max(job.versions) + 1
    inherited = _inherited(job, command, spec, facts.other_job)
    added = max(1, len(inherited.knowledge)) if inherited is not None else 1
    detail = outgrown(job, added=added)
    if detail is not None:
        return refused(job, "too_many_versions", "The job has too many versions", f"{differing}: {detail}")
    begins = f"{differing} from version {job.current_version} of job {job.job_id}: version {number} starts"
    knowing = "with no knowledge"
    if inherited is not None:
        knowing = (
            f"with the knowledge of {inherited.source}, until its own runs outweigh that (inherit=False: with none)"
        )
    warnings = [f"{begins} {knowing}; register with the old values to go back"]
    if inherited is None and command.like is not None and not _is_own(job, command):
        warnings.append(_nothing_from(command.like, spec, facts.other_job))
    if (many := nearly_outgrown(job, added=added)) is not None:
        warnings.append(many)
    event = JobRespecified(version_number=number, spec=spec, seed=_seed(spec, context), inherited=inherited)
    reply = Registered(job_id=job.job_id, version_number=number, is_new=True, spec=spec, warnings=tuple(warnings))
    return Decision(job=apply(job, [event]), events=(event,), reply=reply)


def _inherited(job: Job, command: RegisterJob, spec: JobSpec, like: Job | None) -> Inheritance | None:
    """What a new version starts with. A sibling that is not there costs a training nothing but what it would know."""
    if not command.inherit:
        return None
    if _is_own(job, command):
        return inheritance_from(job.version, spec) if job.is_registered else None
    if like is None or not like.is_registered:
        return None
    return inheritance_from(like.version, spec, sibling=like.job_id)


def _is_own(job: Job, command: RegisterJob) -> bool:
    return command.like in (None, job.job_id)


def _nothing_from(name: str, spec: JobSpec, like: Job | None) -> str:
    """Why nothing was inherited from a job that was named."""
    why = "has no run yet"
    if like is None or not like.is_registered:
        why = "is not registered, or this login cannot read it"
    elif like.spec.policy != spec.policy:
        other = like.spec.policy
        why = f"is under policy {other}, this one under {spec.policy}, which cannot use what the other has learnt"
    elif any(known.arms for known in like.version.knowledge.values()):
        why = f"is under policy {spec.policy}, which takes nothing over from it"
    return f"nothing is inherited from job {name}: it {why}"


def _unchanged_or_refused(job: Job, command: RegisterJob) -> Decision:
    """Refuse whatever differs. Raises InvalidSpec."""
    fields = _differences(job.spec, resolve_spec(command.spec, job.spec))
    if command.hardware != job.hardware:
        fields |= _hardware_differences(job.hardware, command.hardware)
    if command.job_id_prefix != job.job_id_prefix:
        fields["job_id_prefix"] = f"is {job.job_id_prefix!r}, got {command.job_id_prefix!r}"
    if fields:
        detail = f"{_listed(job, fields)}go back to those, or take another job_id"
        return refused(job, "job_conflict", "The job is registered otherwise", detail, fields)
    reply = Registered(job_id=job.job_id, version_number=job.current_version, is_new=False, spec=job.spec)
    return unchanged(job, reply)


def _differences(recorded: _Described, asked: _Described) -> dict[str, str]:
    one, other = asdict(recorded), asdict(asked)
    return {name: f"is {one[name]!r}, got {other[name]!r}" for name in one if one[name] != other[name]}


def _hardware_differences(recorded: HardwareKind | None, asked: HardwareKind | None) -> dict[str, str]:
    if recorded is None or asked is None:
        one, other = ("none" if each is None else each.describe() for each in (recorded, asked))
        return {"hardware": f"is {one}, got {other}"}
    return {f"hardware.{name}": words for name, words in _differences(recorded, asked).items()}


def _listed(job: Job, fields: dict[str, str]) -> str:
    others = "; ".join(f"{name} {difference}" for name, difference in fields.items())
    return f"job {job.job_id} is registered with other values: {others}; "


def _conflict(job: Job, spec: JobSpec) -> Decision:
    changes = _differences(job.spec, spec)
    fields = {name: changes[name] for name in _differing(job.spec, spec)}
    detail = (
        f"{_listed(job, fields)}go back to those, take another job_id, or pass "
        'on_conflict="new_version": the job then gets a new version (`version` may name it) and keeps the old one'
    )
    return refused(job, "job_conflict", "The job is registered with another identity", detail, fields)


def _differing(recorded: JobSpec, asked: JobSpec) -> list[str]:
    one: dict[str, Any] = asdict(recorded)
    other: dict[str, Any] = asdict(asked)
    return [name for name in IDENTITY_FIELDS if one[name] != other[name]]


def _seed(spec: JobSpec, context: Context) -> int:
    return seed_from(context.command_id) if spec.mab_seed is None else spec.mab_seed
