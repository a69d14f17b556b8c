"""Rows of tables as values of the domain, and back; and the types of their columns."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json
from sqlalchemy import DateTime, Dialect, Double, String, Text
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.types import TypeDecorator, TypeEngine

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.identifiers import MAX_LENGTH
from bso.domain.learning_rate import LearningRate
from bso.domain.trial import Outcome, Profiled, Trial, TrialState
from bso.schema.codec import dump
from bso.schema.envelope import validated
from bso.schema.errors import MalformedMessage, StateTooNew
from bso.service.errors import Unstorable
from bso.service.records import JobSummary, LoggedEvent, NewEvent, PowerProfile, StoredEvent, StoredJob
from bso.service.serialization import recorded_from

Row = Mapping[str, Any]

EVENT_COLUMNS = tuple(field.name for field in fields(NewEvent))

_AS_THEY_ARE = (
    "trial_number",
    "trial_id",
    "version_number",
    "recurrence_id",
    "attempt",
    "batch_size",
    "reason",
    "is_unbounded",
    "started_at",
    "lease_expires_at",
    "reports",
    "epoch",
    "time_s",
    "energy_j",
    "is_energy_complete",
    "nonfinite_metrics_in_a_row",
    "cost",
    "bound",
    "outcome_reason",
    "is_over_bound",
    "ended_at",
    "silence_s",
)
_MYSQL = ("mysql", "mariadb")
_UNREADABLE = (ValueError, TypeError, AttributeError, KeyError, MalformedMessage)
"""What reading a row raises where a value is damaged, or of a newer release."""
JOB_COLUMNS = ("job_id", "last_seq", "revision", "state")
"""What a job is read from."""
_NO_MOMENT = datetime.fromtimestamp(0, UTC)
_SHOWN: Mapping[str, tuple[type, Any]] = {
    "spec": (str, "null"),
    "version_number": (int, 0),
    "version": (str, ""),
    "policy": (str, ""),
    "is_deleted": (int, False),
    "last_trial_number": (int, 0),
    "created_at": (datetime, _NO_MOMENT),
    "changed_at": (datetime, _NO_MOMENT),
}
"""What a line about a job shows of its row, by type, and what stands in the place of a damaged value."""
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class _SqliteMoment(sqlite.DATETIME):
    """Reads a text that is no moment as it stands: SQLite keeps any."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        read: Callable[[Any], Any] | None = super().result_processor(dialect, coltype)

        def processed(value: Any) -> Any:
            try:
                return value if read is None else read(value)
            except (ValueError, TypeError):
                return value

        return processed


class Moment(TypeDecorator[datetime]):
    """A moment with microseconds: aware in Python, UTC without a zone in the database."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """DATETIME(6) where DATETIME alone would round to seconds."""
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        if dialect.name == "sqlite":
            return dialect.type_descriptor(_SqliteMoment())  # type: ignore[no-untyped-call]  # SQLAlchemy's own __init__
        return dialect.type_descriptor(DateTime(timezone=False))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; a moment without a zone is a bug."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a moment needs a time zone, got {value!r}")
        return (value if value.tzinfo is UTC else value.astimezone(UTC)).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From UTC. What is no moment, such as MySQL's zero date, comes as it is: who reads the row names its job."""
        return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def ascii_text(length: int = MAX_LENGTH) -> TypeEngine[str]:
    """Short ASCII text, compared and sorted byte by byte."""
    return (
        String(length)
        .with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)
        .with_variant(String(length, collation="C"), "postgresql")
    )


def words(length: int) -> TypeEngine[str]:
    """Text of any language up to a length in characters."""
    return String(length).with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def long_text() -> TypeEngine[str]:
    """Text of any language and length, JSON included: kept character by character, never normalised."""
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def number() -> TypeEngine[float]:
    """A double: FLOAT columns lose digits. Never NaN or infinite, which MySQL refuses."""
    return Double().with_variant(mysql.DOUBLE(asdecimal=False), *_MYSQL)


def trial_row(job_id: str, trial: Trial) -> dict[str, Any]:
    """A trial as a row. Raises Unstorable where a number other than the metric is not finite."""
    row: dict[str, Any] = {name: getattr(trial, name) for name in _AS_THEY_ARE}
    for name in ("epoch", "time_s", "energy_j", "cost", "bound"):
        if row[name] is not None and not math.isfinite(row[name]):
            raise Unstorable(f"{name} of trial {trial.trial_number} of job {job_id} is {row[name]}")
    is_finite = trial.metric is None or math.isfinite(trial.metric)
    return {
        **row,
        **_hardware_row(trial.hardware),
        "profiled_epochs": trial.profiled.epochs,
        "profiled_time_s": trial.profiled.time_s,
        "profiled_energy_j": trial.profiled.energy_j,
        "cost_squares": trial.cost_squares,
        "learning_rate": None if trial.learning_rate is None else dump(trial.learning_rate).decode(),
        "job_id": job_id,
        "state": trial.state.value,
        "outcome": trial.outcome.value if trial.outcome else None,
        "late_outcome": trial.late_outcome.value if trial.late_outcome else None,
        "metric": trial.metric if is_finite else None,
        "nonfinite_metric": None if is_finite else nonfinite_name(trial.metric),
    }


def trial_from(row: Row) -> Trial:
    """A trial from its row. Raises StateTooNew where a value is damaged, or of a newer release."""
    try:
        uuid.UUID(row["trial_id"])  # ids of its commands are derived from it
        check_moments(row, "started_at", "lease_expires_at", "ended_at")
        return Trial(
            **{name: row[name] for name in _AS_THEY_ARE},
            hardware=_hardware(row),
            learning_rate=_learning_rate(row["learning_rate"]),
            profiled=Profiled(
                epochs=row["profiled_epochs"],
                time_s=row["profiled_time_s"],
                energy_j=row["profiled_energy_j"],
            ),
            cost_squares=row["cost_squares"],
            state=TrialState(row["state"]),
            outcome=Outcome(row["outcome"]) if row["outcome"] else None,
            late_outcome=Outcome(row["late_outcome"]) if row["late_outcome"] else None,
            metric=_NONFINITE[row["nonfinite_metric"]] if row["nonfinite_metric"] else row["metric"],
        )
    except _UNREADABLE as error:
        raise _unreadable(f"trial {row['trial_number']} of job {row['job_id']}", error) from error


def stored_from(row: Row) -> StoredJob:
    """The snapshot of a job from its row, as it stands there: without one, there is nothing that could be read."""
    known: dict[str, Any] = {name: row[name] for name in JOB_COLUMNS}
    known["state"] = row["state"] or ""
    return StoredJob(**known)


def summary_from(row: Row) -> JobSummary:
    """A line about a job from its row. A damaged value must not hide all other jobs: it is shown as 0, "" or 1970."""
    known = {name: row[name] if isinstance(row[name], kind) else instead for name, (kind, instead) in _SHOWN.items()}
    try:
        from_json(known["spec"])
    except ValueError:
        known["spec"] = "null"
    return JobSummary(**known, job_id=row["job_id"], last_seq=row["last_seq"], owner=row["owner"] or None)


def profile_row(profile: PowerProfile) -> dict[str, Any]:
    """A power profile as a row."""
    return {
        "job_id": profile.job_id,
        "batch_size": profile.batch_size,
        "measurements": dump(profile.measurements).decode(),
        **_hardware_row(profile.hardware),
    }


def profile_from(row: Row) -> PowerProfile:
    """A power profile from its row. Raises StateTooNew where this release cannot read it."""
    try:
        return PowerProfile(
            job_id=row["job_id"],
            batch_size=row["batch_size"],
            hardware=_hardware(row),
            measurements=validated(tuple[PowerMeasurement, ...], from_json(row["measurements"]), "power profile"),
        )
    except _UNREADABLE as error:
        place = f"the power profile of batch size {row['batch_size']} of job {row['job_id']}"
        raise _unreadable(place, error) from error


def event_row(new: NewEvent) -> dict[str, Any]:
    """An event as a row, without its id and without the moments at which it was recorded and published."""
    return {name: getattr(new, name) for name in EVENT_COLUMNS}


def readable_event(row: Row) -> StoredEvent | None:
    """An event as it stands in its table; None of one that this release cannot read."""
    try:
        return stored_event(row)
    except StateTooNew:
        return None


def stored_event(row: Row) -> StoredEvent:
    """An event as it stands in its table. Raises StateTooNew."""
    try:
        check_moments(row, "recorded_at")
    except ValueError as error:
        raise _unreadable(f"event {row['seq']} of job {row['job_id']}", error) from error
    return StoredEvent(event_id=row["event_id"], recorded=recorded_from(logged_from(row)))


def logged_from(row: Row) -> LoggedEvent:
    """An event of the log from its row."""
    return LoggedEvent(new=NewEvent(**{name: row[name] for name in EVENT_COLUMNS}), recorded_at=row["recorded_at"])


def nonfinite_name(number: float | None) -> str:
    """How a number that JSON and SQL lack is written."""
    return next(name for name, value in _NONFINITE.items() if repr(value) == repr(number))


def _unreadable(place: str, error: Exception) -> StateTooNew:
    return StateTooNew(f"{place} has a value that this program does not know ({error}): upgrade it")


def check_moments(row: Row, *names: str) -> None:
    """Raise ValueError for a value of these columns that is no moment."""
    for name in names:
        if not isinstance(row[name], datetime | None):
            raise ValueError(f"{name} is {row[name]!r}")


def _learning_rate(text: str | None) -> LearningRate | None:
    if text is None:
        return None
    rate: LearningRate = validated(LearningRate, from_json(text), "learning rate")
    return rate


def _hardware_row(hardware: HardwareKind) -> dict[str, Any]:
    return {
        "hardware_key": hardware.key,
        "gpu_model": hardware.gpu_model,
        "memory_mib": hardware.memory_mib,
        "number_of_gpus": hardware.number_of_gpus,
        "max_power_w": hardware.max_power_w,
        "energy_method": hardware.energy_method.value,
    }


def _hardware(row: Row) -> HardwareKind:
    return HardwareKind(
        gpu_model=row["gpu_model"],
        memory_mib=row["memory_mib"],
        number_of_gpus=row["number_of_gpus"],
        max_power_w=row["max_power_w"],
        energy_method=EnergyMethod(row["energy_method"]),
    )
