"""What is taken out of a job's log."""

from dataclasses import replace

import pytest

from bso.domain.cost import Profiled
from bso.domain.events import JobDeleted
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import resolve_spec
from bso.domain.log import RecordedEvent
from bso.domain.trial import LEASE_LAPSED, Outcome, Trial, TrialState
from bso.replay.fold import Folding
from bso.replay.what_if.recorded import End, NotRecorded, Record, record_of
from bso.replay.what_if.worlds import epoch_price
from tests.unit.replay.records import HARDWARE
from tests.unit.replay.recurring_job import BEGINNING, JOB, folded
from tests.unit.simulator.problems import make

EASY = make({16: (9, 10), 32: (5, 6), 64: (8, 9), 128: (40, 45)}, max_epochs=50)
OTHER = replace(HARDWARE, gpu_model="V100")


def trial(number: int, outcome: Outcome | None, epoch: float, *, hardware: HardwareKind = HARDWARE) -> Trial:
    """A training with batch size 32 whose epochs took 10 s and 1000 J."""
    return Trial(
        trial_number=number,
        trial_id=f"trial-{number}",
        version_number=1,
        recurrence_id=f"night-{number}",
        attempt=1,
        batch_size=32,
        hardware=hardware,
        reason="",
        is_unbounded=False,
        started_at=BEGINNING,
        state=TrialState.RUNNING if outcome is None else TrialState.ENDED,
        reports=round(epoch),
        epoch=epoch,
        time_s=10.0 * epoch,
        energy_j=1000.0 * epoch,
        outcome=outcome,
    )


def folding_of(*trials: Trial, eta_knob: float = 0.5) -> Folding:
    """A log that tells of these trials, of a job whose limit are 50 epochs."""
    folding = Folding(JOB)
    registered = folded(EASY, recurrences=1, seed=1).job
    version = replace(registered.version, spec=resolve_spec({"eta_knob": eta_knob}, recorded=registered.spec))
    folding.job = replace(registered.with_version(version), trials={one.trial_number: one for one in trials})
    return folding


def ends(record: Record) -> list[tuple[End, float]]:
    return [(run.end, run.epochs) for run in record.runs]


def test_a_log_tells_how_long_trainings_took_and_how_they_ended() -> None:
    record = record_of(folded(EASY, recurrences=30, seed=3))
    assert (record.job_id, record.version_number, record.hardware) == (JOB, 1, EASY.hardware)
    assert record.models == 30
    assert record.tried_batch_sizes == (16, 32, 64, 128)
    assert record.known_batch_sizes == (16, 32, 64)
    assert {run.epochs for run in record.runs_of(32) if run.end is End.CONVERGED} == {5, 6}
    assert [run.end for run in record.runs_of(128)] == [End.CENSORED]
    assert record.why_unknown(128) == "no converged trainings"


def test_the_price_of_an_epoch_is_that_without_profiling() -> None:
    record = record_of(folded(EASY, recurrences=30, seed=3))
    price = epoch_price(record, 32)
    assert [price.time_s, price.energy_j] == pytest.approx([12.0, 1200.0])  # at the better limit
    assert record.measurements.keys() == {16, 32, 64, 128}


def test_whatever_ended_before_its_target_needs_more_epochs_than_it_had() -> None:
    record = record_of(
        folding_of(
            trial(1, Outcome.CONVERGED, 5),
            trial(2, Outcome.COST_EXCEEDED, 7),
            trial(3, Outcome.INTERRUPTED, 3),
            trial(4, Outcome.CANCELLED, 2),
            trial(5, None, 4),
            trial(6, Outcome.INFEASIBLE, 0),
        )
    )
    assert ends(record) == [(End.CONVERGED, 5), *((End.CENSORED, epochs) for epochs in (7, 3, 2, 4))]
    assert len(record.paid) == 6


def test_who_gave_up_diverged_or_took_all_epochs_would_never_have_converged() -> None:
    record = record_of(
        folding_of(
            trial(1, Outcome.NOT_CONVERGED, 12), trial(2, Outcome.CANCELLED, 50), trial(3, Outcome.CONVERGED, 60)
        )
    )
    assert ends(record) == [(End.FAILED, 50)] * 3


def test_a_last_report_may_come_a_little_after_the_limit() -> None:
    often = replace(trial(1, Outcome.CONVERGED, 50.4), reports=72)  # every 0.7 epochs
    assert ends(record_of(folding_of(often))) == [(End.CONVERGED, 50.4)]


def test_a_result_that_came_late_counts() -> None:
    given_up = replace(
        trial(1, Outcome.INTERRUPTED, 6), outcome_reason=f"{LEASE_LAPSED}: unheard of", late_outcome=Outcome.CONVERGED
    )
    record = record_of(folding_of(given_up))
    assert ends(record) == [(End.CONVERGED, 6)]
    assert record.models == 1


def test_epochs_are_learnt_from_all_hardware_and_prices_and_costs_from_one_kind() -> None:
    here = [trial(number, Outcome.CONVERGED, 5) for number in (1, 2)]
    there = [trial(number, Outcome.CONVERGED, 6, hardware=OTHER) for number in (3, 4)]
    folding = folding_of(*here, *there, trial(5, Outcome.COST_EXCEEDED, 9))
    record = record_of(folding, hardware="a40")
    assert ends(record) == [(End.CONVERGED, 5)] * 2 + [(End.CONVERGED, 6)] * 2 + [(End.CENSORED, 9)]
    assert [run.priced_epochs for run in record.runs] == [5, 5, 0, 0, 9]
    assert len(record.paid) == 3
    assert record_of(folding).hardware == HARDWARE  # as many models, and used later
    assert record_of(folding, hardware=OTHER.key).hardware == OTHER


def test_a_batch_size_without_measured_energy_here_is_unknown() -> None:
    bare = [replace(trial(number, Outcome.CONVERGED, 5), is_energy_complete=False) for number in (1, 2)]
    profiled = replace(trial(3, Outcome.CONVERGED, 5), profiled=Profiled(epochs=5.0, time_s=50.0, energy_j=5000.0))
    record = record_of(folding_of(*bare, profiled))
    assert record.count(32, End.CONVERGED) == 3
    assert record.why_unknown(32) == "no epoch with its energy measured on this hardware"


def test_a_job_that_counts_time_alone_needs_no_energy() -> None:
    bare = [replace(trial(number, Outcome.CONVERGED, 5), is_energy_complete=False, energy_j=7.0) for number in (1, 2)]
    record = record_of(folding_of(*bare, eta_knob=0.0))
    assert record.why_unknown(32) is None
    assert [(run.priced_epochs, run.time_s, run.energy_j) for run in record.runs] == [(5, 50.0, 0.0)] * 2
    assert not record.has_energy([32])
    assert epoch_price(record, 32).time_s == 10.0


def test_the_energy_of_an_epoch_is_that_of_the_trainings_in_which_it_was_measured() -> None:
    bare = replace(trial(1, Outcome.CONVERGED, 5), is_energy_complete=False, energy_j=7.0, time_s=100.0)
    record = record_of(folding_of(bare, trial(2, Outcome.CONVERGED, 5), eta_knob=0.0))
    price = epoch_price(record, 32)
    assert (price.time_s, price.energy_j) == (15.0, 1000.0)
    assert record.has_energy([32])


def test_what_is_not_recorded_is_named() -> None:
    folding = folding_of(trial(1, Outcome.CONVERGED, 5), trial(2, Outcome.CONVERGED, 5, hardware=OTHER))
    with pytest.raises(NotRecorded, match=f"'H100' is none of .*{HARDWARE.key}: 1 x A40"):
        record_of(folding, hardware="H100")
    with pytest.raises(NotRecorded, match="'200 W' is several kinds"):
        record_of(folding, hardware="200 W")
    with pytest.raises(NotRecorded, match="no version 7; it has 1"):
        record_of(folding, version_number=7)
    with pytest.raises(NotRecorded, match="no trial of job nightly is recorded"):
        record_of(folding_of())


def test_another_version_has_its_own_trainings() -> None:
    folding = folding_of(trial(1, Outcome.CONVERGED, 5))
    other = replace(
        folding.job.version, version_number=2, spec=resolve_spec({"eta_knob": 0.9}, recorded=folding.job.spec)
    )
    folding.job = replace(folding.job.with_version(other), current_version=2)
    with pytest.raises(NotRecorded, match=r"no trial of version 2 .*; there are trials of version 1"):
        record_of(folding)
    assert record_of(folding, version_number=1).spec.eta_knob == 0.5


def test_a_deleted_job_is_refused() -> None:
    folding = folded(EASY, recurrences=1, seed=1)
    folding.add(
        RecordedEvent(
            job_id=JOB,
            seq=folding.last_seq + 1,
            recorded_at=BEGINNING,
            command_id="00000000-0000-7000-8000-ffffffffffff",
            part=0,
            event=JobDeleted(),
        )
    )
    with pytest.raises(NotRecorded, match="is deleted"):
        record_of(folding)
