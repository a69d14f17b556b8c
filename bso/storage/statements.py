"""The hot path's queries, built once per kind of database: building one costs more than executing it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    Join,
    Select,
    Subquery,
    Update,
    and_,
    bindparam,
    case,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
    update,
)

from bso.domain.trial import TrialState
from bso.storage.dialects import Dialect
from bso.storage.tables import event, job, log_epoch, power_profile, trial

_TRIALS, _ANSWERS = 1, 2
_ENDS = ("first", "last")
_MOST_RANGES = 16
MOST = 2**64 - 1
"""The largest integer of MySQL: a sum with 1 is out of range (error 1690), which keeps a request from its COMMIT."""
ACTIVE = (TrialState.RUNNING.value, TrialState.SUSPENDED.value)

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


JOBS_OWNED = select(func.count().label("jobs_owned")).where(job.c.owner == bindparam("owner", type_=job.c.owner.type))
"""How many jobs ``owner`` has, deleted ones included."""


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
    state = case((_is_known(), ""), else_=job.c.state).label("state")
    return _jobs(dialect, state).order_by(job.c.job_id).with_for_update(skip_locked=True)


def _is_known() -> ColumnElement[bool]:
    return tuple_(job.c.job_id, job.c.revision).in_(bindparam("known", expanding=True))


@cache
def jobs_as_expected(dialect: Dialect) -> Select[Any]:
    """Lock the ``count`` jobs with ``revisions`` (job_id, revision), or fail by a sum that is out of range (MySQL).

    It fails where one of them is missing, held by another transaction, or in another revision, where the clock is not
    between ``since`` and ``until``, and where the log is not in ``epoch``, was looked at last before ``looked_at``, or
    is outdated.
    """
    epoch = and_(
        log_epoch.c.number == bindparam("epoch", type_=log_epoch.c.number.type),
        log_epoch.c.looked_at >= bindparam("looked_at", type_=log_epoch.c.looked_at.type),
        log_epoch.c.outdated_at.is_(None),
    )
    counted = bindparam("count", type_=job.c.revision.type)
    moment = log_epoch.c.looked_at.type
    is_in_time = dialect.clock().between(bindparam("since", type_=moment), bindparam("until", type_=moment))
    fails = or_(func.count() != counted, ~is_in_time, ~select(log_epoch.c.number).where(epoch).exists())
    chosen = and_(
        job.c.job_id.in_(_several("job_ids", job.c.job_id)),
        tuple_(job.c.job_id, job.c.revision).in_(bindparam("revisions", expanding=True)),
    )
    checked = literal_column(str(MOST)).op("+")(fails.self_group()).label("checked")
    return dialect.by_index(select(checked).select_from(job).where(chosen), job, "PRIMARY").with_for_update(
        skip_locked=True
    )


@cache
def recollection(dialect: Dialect) -> Select[*tuple[Any, ...]]:
    """The database's clock, the log's epoch, what ``command_ids`` were answered, and the active trials of ``job_ids``.

    One query, because each is a round trip while jobs are locked. Its rows are those of two queries, at least one each:
    the answers (``answered_job_id`` is the job of one) without a trial, and the trials without an answer.
    """
    parts = union_all(select(literal(_ANSWERS).label("part")), select(literal(_TRIALS))).subquery()
    # No trial has a lower number than 1: for MySQL, SQLAlchemy takes the third table of a join for connected only where
    # a condition compares its columns with another's.
    numbered = trial.c.trial_number >= parts.c.part
    of_jobs = trial.c.job_id.in_(_several("job_ids", trial.c.job_id))
    active = and_(parts.c.part == _TRIALS, numbered, of_jobs, trial.c.state.in_(ACTIVE))
    return _remembered(dialect, parts.outerjoin(event, _asked(parts)).outerjoin(trial, active))


@cache
def recollection_of_changed(dialect: Dialect) -> Select[*tuple[Any, ...]]:
    """The same, sent with the lock: before it shows which of ``job_ids`` are ``known`` (job_id, revision) no more.

    Trials are those of these jobs alone. Of ``known`` there must be one at least: no row is in a list of nothing, nor
    outside of it. The states are values of a table, so that MySQL looks trials up by job and state: with a range of
    states it reads all of a job. PostgreSQL would read the whole table.
    """
    parts = union_all(
        select(literal(_ANSWERS).label("part"), literal("").label("state")),
        *(select(literal(_TRIALS), literal(state)) for state in ACTIVE),
    ).subquery()
    # A job's last seq is 1 at least: the comparison connects the tables for SQLAlchemy, as above.
    is_registered = job.c.last_seq >= parts.c.part
    of_jobs = job.c.job_id.in_(_several("job_ids", job.c.job_id))
    changed = and_(parts.c.part == _TRIALS, is_registered, of_jobs, ~_is_known())
    active = and_(trial.c.job_id == job.c.job_id, trial.c.state == parts.c.state)
    rows = parts.outerjoin(event, _asked(parts)).outerjoin(job, changed).outerjoin(trial, active)
    return dialect.by_index(_remembered(dialect, rows), job, "PRIMARY")


def _asked(parts: Subquery) -> ColumnElement[bool]:
    command_ids = _several("command_ids", event.c.command_id)
    return and_(parts.c.part == _ANSWERS, event.c.command_id.in_(command_ids), event.c.part == 0)


def _remembered(dialect: Dialect, rows: Join) -> Select[*tuple[Any, ...]]:
    of_event = (event.c[name].label(f"answered_{name}") for name in ("job_id", "trial_number", "epoch"))
    answered = (event.c.command_id, *of_event, event.c.reply_type, event.c.reply)
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


def published(dialect: Dialect, event_ids: Collection[int]) -> tuple[Update, Mapping[str, Any]]:
    """Mark those of these events as published that nobody has marked before; with the parameters.

    The event_ids of one worker alone follow one another, and are a few ranges.
    """
    ranges = _ranges(sorted(event_ids))
    if len(ranges) > _MOST_RANGES:
        return _published_ids(dialect), {"event_ids": sorted(event_ids)}
    count = 1 << (len(ranges) - 1).bit_length()  # few statements to compile: the last range fills up
    padded = [*ranges, *[ranges[-1]] * (count - len(ranges))]
    ends = {
        f"{name}_{number}": end for number, both in enumerate(padded) for name, end in zip(_ENDS, both, strict=True)
    }
    return _published_ranges(dialect, count), ends


def _ranges(event_ids: Sequence[int]) -> list[tuple[int, int]]:
    """The runs of consecutive numbers in a sorted list."""
    firsts = [
        one for one, before in zip(event_ids, (None, *event_ids), strict=False) if before is None or one > before + 1
    ]
    lasts = [
        one for one, after in zip(event_ids, (*event_ids[1:], None), strict=True) if after is None or after > one + 1
    ]
    return list(zip(firsts, lasts, strict=True))


@cache
def _published_ids(dialect: Dialect) -> Update:
    return _marking(dialect, event.c.event_id.in_(_several("event_ids", event.c.event_id)))


@cache
def _published_ranges(dialect: Dialect, count: int) -> Update:
    first, last = _ENDS
    ranges = (
        event.c.event_id.between(bindparam(f"{first}_{number}"), bindparam(f"{last}_{number}"))
        for number in range(count)
    )
    return _marking(dialect, or_(*ranges))


def _marking(dialect: Dialect, chosen: ColumnElement[bool]) -> Update:
    return update(event).where(chosen, event.c.published_at.is_(None)).values(published_at=dialect.clock())
