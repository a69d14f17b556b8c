"""What a list of jobs says of one."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bso.domain.replies import ArmDescription, Confidence, JobDescription, KindDescription
from bso.service.listed_jobs import ListedJob
from bso.service.records import JobOverview, JobSummary, StoredJob
from tests.unit.drawing.samples import SPEC, arm, kind, trial


def listed(found: KindDescription | None, *, is_deleted: bool = False) -> ListedJob:
    """A job of which so much is known; None: its state cannot be read."""
    now = datetime(2026, 3, 4, tzinfo=UTC)
    summary = JobSummary(
        job_id="job",
        last_seq=1,
        spec="{}",
        version_number=1,
        version="",
        policy="curve",
        owner=None,
        is_deleted=is_deleted,
        last_trial_number=1,
        created_at=now,
        changed_at=now,
    )
    described = None
    if found is not None:
        described = JobDescription(
            job_id="job",
            owner=None,
            version_number=1,
            spec=SPEC,
            trials=1,
            recurrences=1,
            open_recurrences=(),
            kinds=(found,),
            active_trials=(),
        )
    stored = StoredJob(job_id="job", last_seq=1, revision=1, state="")
    return ListedJob(overview=JobOverview(summary=summary, stored=stored, last_trial=trial(1)), description=described)


@pytest.mark.parametrize(
    ("best", "default", "share"),
    [
        (arm(64, mean=600.0), arm(128, mean=1000.0), 0.4),
        (arm(64, mean=1500.0), arm(128, mean=1000.0), -0.5),
        (arm(64, mean=600.0), arm(128, mean=1000.0, trials=0), None),
        (arm(64, mean=600.0, trials=0), arm(128, mean=1000.0), None),
        (arm(64, mean=600.0), arm(128, mean=None), None),
    ],
    ids=["less", "more", "the default has not converged", "the best has not converged", "nothing is expected"],
)
def test_what_the_best_batch_size_saves_is_expected_beside_the_default(
    best: ArmDescription, default: ArmDescription, share: float | None
) -> None:
    assert listed(kind(best, default)).expected_saving == pytest.approx(share)


def test_without_a_best_batch_size_nothing_is_saved() -> None:
    assert listed(kind(arm(128), best=None)).expected_saving is None
    assert listed(None).expected_saving is None


def test_a_job_that_cannot_be_read_needs_somebody_unless_it_is_deleted() -> None:
    assert listed(None).attention == "cannot be read"
    assert listed(None, is_deleted=True).attention == ""
    assert listed(kind(arm(64))).attention == ""
    assert listed(kind(arm(64), needs_attention=True, attention="no model")).attention == "needs attention"


def test_what_the_next_training_will_probably_run_with() -> None:
    known = kind(arm(64), arm(128))
    sure = Confidence(runs=9, cost_noise=0.1, may_save=0.01, more_runs_pay=False)
    assert listed(replace(known, confidence=sure, round_number=None)).next_decision == "64"
    assert listed(replace(known, confidence=replace(sure, more_runs_pay=True))).next_decision == "64 or another"
    assert listed(replace(known, confidence=None, round_number=2)).next_decision == "64 or another"
    assert listed(kind(arm(128), best=None)).next_decision == "not known yet"
    assert listed(replace(known, hardware_key="another")).next_decision == "128 (default)"
    assert listed(None).next_decision == "–"
