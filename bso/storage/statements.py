"""The hot path's queries, built once per kind of database: building one costs more than executing it."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Select,
    Update,
    and_,
    bindparam,
    case,
    insert,
    literal,
    select,
    tuple_,
    union_all,
    update,
)

from bso.domain.trial import TrialState
from bso.storage.dialects import Dialect
from bso.storage.tables import event, job, log_epoch, power_profile, trial

_TRIALS, _ANSWERS = 1, 2
_ACTIVE = (TrialState.RUNNING.value, TrialState.SUSPENDED.value)

APPEND_EVENTS = insert(event)


def _several(name: str, column: Column[Any]) -> BindParameter[Any]:
    """A parameter that takes a list of a column's values."""
    return bindparam(name, expanding=True, type_=column.type)


EVENT_IDS = select(event.c.event_id, event.c.job_id, event.c.seq).where(
    event.c.command_id.in_(_several("command_ids", event.c.command_id))
)
"""The event_ids that the events of ``command_ids`` were given."""

ORPHANS = (
    select(event.c.job_id)
    .select_from(event.outerjoin(job, and_(job.c.job_id == event.c.job_id, job.c.last_seq > 0)))
    .where(event.c.job_id.in_(_several("job_ids", event.c.job_id)), job.c.job_id.is_(None))
    .group_by(event.c.job_id)
)
"""Those of ``job_ids`` that have events and no row. One query, so that a job registered meanwhile is none of them."""


@cache
def jobs(dialect: Dialect) -> Select[Any]:
    """Read ``job_ids`` as they were last committed, placeholders included."""
    return _jobs(dialect, job.c.state)


def _jobs(dialect: Dialect, state: ColumnElement[Any]) -> Select[Any]:
    chosen = job.c.job_id.in_(_several("job_ids", job.c.job_id))
    found = select(job.c.job_id, job.c.last_seq, job.c.revision, state).where(chosen)
    return dialect.by_index(found, job, "PRIMARY")


@cache
def locked_jobs(dialect: Dialect) -> Select[Any]:
    """Lock ``job_ids``, in the order of their ids."""
    return jobs(dialect).order_by(job.c.job_id).with_for_update()


@cache
def free_jobs(dialect: Dialect) -> Select[Any]:
    """Lock those of ``job_ids`` that no other transaction holds, without the state of ``known`` (job_id, revision)."""
    is_known = tuple_(job.c.job_id, job.c.revision).in_(bindparam("known", expanding=True))
    state = case((is_known, ""), else_=job.c.state).label("state")
    return _jobs(dialect, state).order_by(job.c.job_id).with_for_update(skip_locked=True)


@cache
def recollection(dialect: Dialect) -> Select[*tuple[Any, ...]]:
    """The database's clock, the log's epoch, what ``command_ids`` were answered, and the active trials of ``job_ids``.

    One query, because each is a round trip while jobs are locked. Its rows are those of two queries, at least one each:
    the answers (``answered_job_id`` is the job of one) without a trial, and the trials without an answer.
    """
    halves = union_all(select(literal(_ANSWERS).label("half")), select(literal(_TRIALS))).subquery()
    command_ids, job_ids = _several("command_ids", event.c.command_id), _several("job_ids", trial.c.job_id)
    asked = and_(halves.c.half == _ANSWERS, event.c.command_id.in_(command_ids), event.c.part == 0)
    # No trial has a lower number than 1: for MySQL, SQLAlchemy takes the third table of a join for connected only where
    # a condition compares its columns with another's.
    numbered = trial.c.trial_number >= halves.c.half
    active = and_(halves.c.half == _TRIALS, numbered, trial.c.job_id.in_(job_ids), trial.c.state.in_(_ACTIVE))
    answered = (event.c.command_id, event.c.job_id.label("answered_job_id"), event.c.reply_type, event.c.reply)
    rows = halves.outerjoin(event, asked).outerjoin(trial, active)
    # The one row of the log's epoch, or NULLs.
    epoch = [select(column).scalar_subquery().label(f"epoch_{column.name}") for column in log_epoch.columns]
    found = select(dialect.clock().label("now"), *epoch, *answered, *trial.columns).select_from(rows)
    return dialect.by_index(found, trial, "ix_trial_active")


@cache
def power_profiles(dialect: Dialect) -> Select[Any]:
    """The power profiles of ``job_ids`` on the hardware kinds ``hardware_keys``."""
    of_jobs = power_profile.c.job_id.in_(_several("job_ids", power_profile.c.job_id))
    on_kinds = power_profile.c.hardware_key.in_(_several("hardware_keys", power_profile.c.hardware_key))
    return dialect.by_index(select(power_profile).where(of_jobs, on_kinds), power_profile, "PRIMARY")


@cache
def published(dialect: Dialect) -> Update:
    """Mark those of ``event_ids`` as published that nobody has marked before."""
    unmarked = and_(event.c.event_id.in_(_several("event_ids", event.c.event_id)), event.c.published_at.is_(None))
    return update(event).where(unmarked).values(published_at=dialect.clock())
