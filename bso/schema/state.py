"""A job's stored snapshot: everything but its trials and the columns beside it, as versioned JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from bso.domain.job import Job, JobVersion, Recurrence, UnacknowledgedStop
from bso.schema.envelope import dump, validated
from bso.schema.errors import StateTooNew
from bso.schema.policy_values import read_stop, read_version

STATE_MAJOR = 1
"""Raised when an older release could no longer read the state; release n must read what n+1 writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The fields of a job that its snapshot holds."""

    state_major: int
    last_trial_number: int
    last_recurrence_number: int
    owner: str | None
    is_deleted: bool
    current_version: int
    versions: Mapping[int, JobVersion]
    recurrences: Mapping[str, Recurrence]
    unacknowledged_stops: Mapping[int, UnacknowledgedStop]
    has_power_profiles: bool


def state_of(job: Job) -> str:
    """The snapshot of a job as JSON text: equal text exactly for equal states."""
    state = _in_order(
        JobState(
            state_major=STATE_MAJOR,
            last_trial_number=job.last_trial_number,
            last_recurrence_number=job.last_recurrence_number,
            owner=job.owner,
            is_deleted=job.is_deleted,
            current_version=job.current_version,
            versions=job.versions,
            recurrences=job.recurrences,
            unacknowledged_stops=job.unacknowledged_stops,
            has_power_profiles=job.has_power_profiles,
        )
    )
    return dump(state).decode()


def job_from_state(job_id: str, last_seq: int, state: Mapping[str, Any]) -> Job:
    """The job that a parsed snapshot describes, without its trials. Raises StateTooNew, MalformedMessage.

    What a policy remembers that is not installed here stays as it was parsed.
    """
    major = state.get("state_major")
    if isinstance(major, int) and major > STATE_MAJOR:
        raise StateTooNew(
            f"the stored state of job {job_id} has version {major}, this program reads up to {STATE_MAJOR}: upgrade it"
        )
    stored: JobState = validated(JobState, state, f"stored state of job {job_id}")
    return Job(
        job_id=job_id,
        last_seq=last_seq,
        last_trial_number=stored.last_trial_number,
        last_recurrence_number=stored.last_recurrence_number,
        owner=stored.owner,
        is_deleted=stored.is_deleted,
        current_version=stored.current_version,
        versions={number: read_version(version) for number, version in stored.versions.items()},
        recurrences=stored.recurrences,
        unacknowledged_stops={number: read_stop(stop) for number, stop in stored.unacknowledged_stops.items()},
        has_power_profiles=stored.has_power_profiles,
    )


def _in_order(value: Any) -> Any:
    """A value as lists and dictionaries in a fixed order: sets and mappings have none of their own."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_in_order(item) for item in value]
    names = _field_names(value.__class__)
    return {name: _in_order(getattr(value, name)) for name in names} if names else value


@cache
def _field_names(value_type: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(value_type)) if is_dataclass(value_type) else ()
