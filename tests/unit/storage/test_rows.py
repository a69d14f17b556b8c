"""Rows and values."""

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from bso.domain.errors import Retryable
from bso.domain.policies import is_policy_name
from bso.domain.trial import Outcome, Trial, TrialState
from bso.schema.codec import REPLIES, all_events
from bso.service.errors import Unstorable
from bso.storage import tables
from bso.storage.rows import Moment, trial_from, trial_row
from bso.storage.tables import trial as trial_table
from tests.contract.storage.job_requests import HARDWARE, JOB

TRIAL = Trial(
    trial_number=3,
    trial_id="5b0f3f0e-5a0b-5f5e-9c51-6c6f0a7a4c11",
    version_number=1,
    recurrence_id="monday",
    attempt=2,
    batch_size=64,
    hardware=HARDWARE,
    reason="exploring",
    is_unbounded=False,
    started_at=datetime(2026, 1, 1, 1, 2, 3, 456789, tzinfo=UTC),
    state=TrialState.ENDED,
    outcome=Outcome.INTERRUPTED,
    late_outcome=Outcome.CONVERGED,
    metric=-0.0,
    cost=0.1 + 0.2,
    bound=1e300,
)


def test_columns_are_as_wide_as_the_longest_names() -> None:
    policy, event_type, reply_type = (
        column.type.length  # type: ignore[attr-defined]  # of text
        for column in (tables.job.c.policy, tables.event.c.type, tables.event.c.reply_type)
    )
    assert is_policy_name("a" * policy)
    assert not is_policy_name("a" * (policy + 1))
    assert max(map(len, all_events())) <= event_type
    assert max(map(len, REPLIES)) <= reply_type


def test_a_trial_comes_back_as_it_was() -> None:
    assert trial_from(trial_row(JOB, TRIAL)) == TRIAL
    assert trial_row(JOB, TRIAL).keys() == {column.name for column in trial_table.columns}


@pytest.mark.parametrize("name", ["epoch", "time_s", "energy_j", "cost", "bound"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_no_number_but_the_metric_may_be_infinite(name: str, number: float) -> None:
    change: dict[str, Any] = {name: number}
    with pytest.raises(Unstorable, match=f"{name} of trial 3"):
        trial_row(JOB, replace(TRIAL, **change))


@pytest.mark.parametrize("column", ["state", "outcome", "energy_method", "nonfinite_metric"])
def test_a_value_of_a_newer_release_is_not_guessed_at(column: str) -> None:
    with pytest.raises(Retryable, match="does not know"):
        trial_from({**trial_row(JOB, TRIAL), column: "from_the_future"})


@pytest.mark.parametrize("column", ["trial_id", "lease_expires_at", "started_at"])
@pytest.mark.parametrize("value", ["0000-00-00 00:00:00", 0])
def test_a_trial_that_is_damaged_names_its_job(column: str, value: object) -> None:
    with pytest.raises(Retryable, match=f"trial 3 of job {JOB}"):
        trial_from({**trial_row(JOB, TRIAL), column: value})


def test_a_moment_without_a_zone_is_a_bug() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        Moment().process_bind_param(datetime(2026, 1, 1), sqlite.dialect())  # noqa: DTZ001 - the bug
