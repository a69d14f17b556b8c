"""What a log says against what the tables hold: every difference, by row and column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from pydantic_core import from_json

from bso.domain.commands import PowerMeasurement
from bso.domain.errors import BsoError
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.trial import TrialState
from bso.replay.expected_rows import ExpectedRows
from bso.replay.fold import Folding, InnerSnapshot
from bso.schema.codec import dump, job_from_state, state_of
from bso.schema.envelope import validated
from bso.storage.job_logs import JobRows
from bso.storage.rows import Row

_PLACES = {
    "job": "job",
    "trial": "trial {trial_number}",
    "power_profile": "power profile of batch size {batch_size} on hardware {hardware_key}",
    "event": "event {seq}",
    "snapshot": "snapshot in event {seq}",
}
"""How a row of each table is called."""
_Key = TypeVar("_Key")
MISSING = "(no such row)"
NOTHING = "(nothing)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where log and tables disagree. ``row`` is the key beside the job_id; a column may be a path into JSON.

    An empty column speaks of the whole row.
    """

    table: str
    row: Mapping[str, Any] = field(default_factory=dict)
    column: str
    log: Any
    found: Any

    @property
    def sentence(self) -> str:
        """The difference in words."""
        place = _PLACES[self.table].format(**self.row)
        column = f", column {self.column}" if self.column else ""
        return f"{place}{column}: the log says {_shown(self.log)}, the table {_shown(self.found)}"


def differences(folding: Folding, expected: ExpectedRows, rows: JobRows) -> Iterator[Difference]:
    """Every difference between a job's log and its rows, and between the log and snapshots in its midst."""
    yield from snapshot_differences(folding)
    yield from _of_job(expected, rows)
    for number, one, other in _pairs(expected.trials, trials_of(rows)):
        if one is not None or other is None or not precedes_log(folding, other):
            yield from _of_row("trial", {"trial_number": number}, one, other)
    for (batch_size, hardware_key), one, other in _pairs(expected.power_profiles, profiles_of(rows)):
        if one is not None or other is None or not profile_precedes_log(folding, other):
            place = {"batch_size": batch_size, "hardware_key": hardware_key}
            yield from _of_row("power_profile", place, one, other)


def snapshot_differences(folding: Folding) -> Iterator[Difference]:
    """Every difference between the log and snapshots in its midst."""
    for snapshot in folding.inner_snapshots:
        yield from _of_snapshot(snapshot)


def trials_of(rows: JobRows) -> dict[int, Row]:
    """The rows of a job's trials, by number."""
    return {row["trial_number"]: row for row in rows.trials}


def profiles_of(rows: JobRows) -> dict[tuple[int, str], Row]:
    """The rows of its power profiles, by batch size and key of the hardware kind."""
    return {(row["batch_size"], row["hardware_key"]): row for row in rows.power_profiles}


def precedes_log(folding: Folding, row: Row) -> bool:
    """Whether a trial's row may be right although it is not in the log: the trial had ended before the log begins."""
    return bool(row["trial_number"] <= folding.trials_before and row["state"] == TrialState.ENDED.value)


def profile_precedes_log(folding: Folding, row: Row) -> bool:
    """The same of a power profile: it was measured before the log begins."""
    before, recorded_at = folding.profiles_before, row["recorded_at"]
    return before is not None and isinstance(recorded_at, datetime) and recorded_at <= before


def row_differences(table: str, key: Mapping[str, Any], expected: Row, found: Row) -> Iterator[Difference]:
    """The differing columns of one row."""
    for column, value in expected.items():
        if (table, column) == ("trial", "lease_expires_at") or (column == "created_at" and value is None):
            # No part of history; nothing is known of it where the log's beginning was pruned.
            if not isinstance(found[column], datetime | None):
                yield Difference(table=table, row=key, column=column, log="that there is a moment", found=found[column])
            continue
        for path, one, other in _of_values(table, column, value, found):
            yield Difference(table=table, row=key, column=path, log=one, found=other)


def _of_job(expected: ExpectedRows, rows: JobRows) -> Iterator[Difference]:
    if rows.job is None:
        yield Difference(table="job", column="", log="that there is a job", found=MISSING)
        return
    yield from row_differences("job", {}, expected.job, rows.job)


def _pairs(expected: Mapping[_Key, Row], found: Mapping[_Key, Row]) -> Iterator[tuple[_Key, Row | None, Row | None]]:
    """Each row by the log, and the table's own; one of them may be missing."""
    keys = dict.fromkeys([*expected, *found])
    return ((key, expected.get(key), found.get(key)) for key in keys)


def _of_row(table: str, key: Mapping[str, Any], expected: Row | None, found: Row | None) -> Iterator[Difference]:
    if expected is not None and found is not None:
        yield from row_differences(table, key, expected, found)
        return
    log = NOTHING if expected is None else _gist(expected)
    yield Difference(table=table, row=key, column="", log=log, found=MISSING if found is None else _gist(found))


def _gist(row: Row) -> Any:
    """A row that only one side has, in a word or two."""
    return f"state {row['state']}" if "state" in row else _json(row["measurements"])


def _of_snapshot(snapshot: InnerSnapshot) -> Iterator[Difference]:
    key = {"seq": snapshot.seq}
    folded, found = (from_json(state_of(replace(job, trials={}))) for job in (snapshot.folded, snapshot.snapshot))
    pairs = list(_of_json("state", folded, found))
    pairs += _of_json("trials", _trials_as_json(snapshot.folded), _trials_as_json(snapshot.snapshot))
    for path, one, other in pairs:
        yield Difference(table="snapshot", row=key, column=path, log=one, found=other)


def _trials_as_json(job: Job) -> Any:
    plain = {str(number): replace(trial, lease_expires_at=None) for number, trial in sorted(job.trials.items())}
    return from_json(dump(plain))


def _of_values(table: str, column: str, expected: Any, row: Row) -> Iterator[tuple[str, Any, Any]]:
    found = row[column]
    if column == "owner":
        found = found or ""  # NULL: the same
    if found == expected:
        return
    read = _JSON_COLUMNS.get((table, column))
    if read is not None and isinstance(found, str) and isinstance(expected, str):
        try:
            normal = read(row["job_id"], from_json(found))
        except (BsoError, ValueError, TypeError) as error:
            yield column, _json(expected), f"what cannot be read ({error})"
            return
        yield from _of_json(column, _json(expected), normal)
    else:
        yield column, expected, found


def _of_json(path: str, expected: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    """The innermost differing places of two parsed JSON values."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted(expected.keys() | found.keys()):
            yield from _of_json(f"{path}.{name}", expected.get(name, NOTHING), found.get(name, NOTHING))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _of_json(f"{path}[{index}]", one, other)
    elif expected != found or type(expected) is not type(found):
        yield path, expected, found


def _state(job_id: str, parsed: Any) -> Any:
    if not isinstance(parsed, dict):
        raise TypeError("it is not a JSON object")
    return from_json(state_of(job_from_state(job_id, 0, parsed)))


def _spec(_: str, parsed: Any) -> Any:
    return None if parsed is None else _again(validated(JobSpec, parsed, "specification"))


def _learning_rate(_: str, parsed: Any) -> Any:
    return _again(validated(LearningRate, parsed, "learning rate"))


def _measurements(_: str, parsed: Any) -> Any:
    return _again(validated(tuple[PowerMeasurement, ...], parsed, "power profile"))


def _again(value: object) -> Any:
    """A value as JSON would give it back."""
    return from_json(dump(value))


def _json(text: Any) -> Any:
    try:
        return from_json(text)
    except (ValueError, TypeError):
        return text


_JSON_COLUMNS: Mapping[tuple[str, str], Callable[[str, Any], Any]] = {
    ("job", "state"): _state,
    ("job", "spec"): _spec,
    ("trial", "learning_rate"): _learning_rate,
    ("power_profile", "measurements"): _measurements,
}
"""Columns that hold JSON, where other text may mean the same."""


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else dump(value).decode()
    return text if len(text) <= 200 else f"{text[:197]}..."
