"""What people read: quantities, moments, sentences."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import typer

from bso.domain.events import (
    ChangePoint,
    EpochReported,
    Event,
    JobRegistered,
    JobRespecified,
    RecurrenceEnded,
    TrialStarted,
)
from bso.domain.quantities import counted, listed, moment, number
from bso.domain.sentences import sentence
from bso.policies.pruning_thompson.memory import RoundEnded
from bso.schema.codec import all_events
from bso_cli.moments import moment_from
from tests.unit.cli.samples import EVENTS, NOW


def test_counts_agree_with_their_noun() -> None:
    assert [counted(0, "trial"), counted(1, "trial"), counted(2, "trial")] == ["0 trials", "1 trial", "2 trials"]


def test_nothing_is_a_dash() -> None:
    assert [listed([]), number(None), moment(None)] == ["–"] * 3


def test_moments_are_shown_in_utc() -> None:
    assert moment(NOW) == "2026-03-04 05:06:07"
    assert moment(datetime(2026, 3, 4)) == "2026-03-04 00:00:00"  # noqa: DTZ001  a database without zones


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_each_event_has_a_sentence(event: Event) -> None:
    said = sentence(event)
    assert len(said) > 15
    assert "None" not in said
    assert "Outcome." not in said


def test_a_trial_says_its_learning_rate_and_a_report_that_limits_were_profiled() -> None:
    said = {type(event): sentence(event) for event in EVENTS}
    assert (
        "batch size 16, learning rate 0.05 (0.1 at batch size 32, linear scaling): exploring 16" in said[TrialStarted]
    )
    assert said[EpochReported].endswith("; power limits were profiled")


def test_what_a_version_has_inherited_is_a_few_words() -> None:
    said = {type(event): sentence(event) for event in EVENTS}
    assert said[JobRespecified].endswith("eta 0.5; what is known of batch sizes 8, 16 is inherited from version 1")
    assert "inherited" not in said[JobRegistered]


ROUND = next(event for event in EVENTS if isinstance(event, RoundEnded))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "8, 16 converged, 8 at the least cost; left out from now on: 32"),
        (
            {"survivors": (8, 16, 32), "pruned": ()},
            "8, 16, 32 converged, 8 at the least cost; left out from now on: none",
        ),
        ({"survivors": (), "pruned": ()}, "no batch size converged; it begins again in the next recurrence"),
    ],
    ids=["some", "all", "none"],
)
def test_the_end_of_a_round_is_a_sentence_whoever_is_left(changes: dict[str, Any], words: str) -> None:
    assert sentence(replace(ROUND, **changes)) == f"pruning round 1 ended: {words}"


def test_a_recurrence_without_a_model_names_no_trial() -> None:
    ended = RecurrenceEnded(recurrence_id="night-1", has_model=False, trial_number=None, reason="all attempts failed")
    assert sentence(ended) == "recurrence night-1 ended without a model: all attempts failed"


def test_no_event_type_is_without_a_sentence() -> None:
    assert {type(event) for event in EVENTS} == set(all_events().values())


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("12h", NOW - timedelta(hours=12)),
        ("30d", NOW - timedelta(days=30)),
        ("2w", NOW - timedelta(days=14)),
    ],
)
def test_a_moment_may_be_a_date_a_time_or_an_age(text: str, meant: datetime) -> None:
    assert moment_from(text, option="--before", now=NOW) == meant


@pytest.mark.parametrize("text", ["yesterday", "", "30", "30m", "2026-13-01", "999999w"])
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected a date"):
        moment_from(text, option="--before", now=NOW)


@pytest.mark.parametrize(("cost", "words"), [(20.0, "costs have risen from 5 J to 20 J"), (2.0, "costs have fallen")])
def test_a_change_point_says_whether_costs_have_risen_or_fallen(cost: float, words: str) -> None:
    change = ChangePoint(version_number=1, hardware_key="k", trial_number=1, cost=cost, old_reference=5.0)
    assert sentence(change).startswith(words)
