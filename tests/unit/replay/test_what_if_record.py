"""What is taken out of a job's log."""

import math
from dataclasses import replace

import pytest

from bso.domain.events import JobDeleted
from bso.domain.job_spec import resolve_spec
from bso.domain.log import RecordedEvent
from bso.domain.trial import LEASE_LAPSED, Outcome, Profiled, Trial
from bso.replay.fold import Folding
from bso.replay.what_if.history import record_of
from bso.replay.what_if.record import End, NotRecorded, Record, RecordedRun, SizeRecord
from bso.simulator.problem import EpochPrice
from tests.unit.replay.records import HARDWARE, record, run, trial
from tests.unit.replay.recurring_job import BEGINNING, JOB, folded
from tests.unit.simulator.problems import make

EASY = make({16: (9, 10), 32: (5, 6), 64: (8, 9), 128: (40, 45)}, max_epochs=50)
OTHER = replace(HARDWARE, gpu_model="V100")


def folding_of(*trials: Trial, eta_knob: float = 0.5) -> Folding:
    """A log of these trials, of a job whose limit are 50 epochs."""
    folding = Folding(JOB)
    registered = folded(EASY, recurrences=1, seed=1).job
    version = replace(registered.version, spec=resolve_spec({"eta_knob": eta_knob}, recorded=registered.spec))
    folding.job = replace(registered.with_version(version), trials={one.trial_number: one for one in trials})
    return folding


def ends(found: Record) -> list[tuple[End, float]]:
    return [(one.end, one.epochs) for one in found.runs]


def priced(one: RecordedRun, factor: float) -> RecordedRun:
    """The same training on a slower machine."""
    return replace(one, time_s=factor * one.time_s, energy_j=factor * one.energy_j)


def standing(found: Record, batch_size: int) -> SizeRecord:
    known = found.standing(batch_size)
    assert known is not None
    return known


def price_of(found: Record, batch_size: int) -> EpochPrice:
    price = found.price(found.runs_of(batch_size))
    assert price is not None
    return price


def test_a_log_shows_how_long_trainings_took_and_how_they_ended() -> None:
    found = record_of(folded(EASY, recurrences=30, seed=3))
    assert (found.job_id, found.version_number, found.hardware) == (JOB, 1, EASY.hardware)
    assert found.models == 30
    assert found.tried_batch_sizes == (16, 32, 64, 128)
    assert found.known_batch_sizes == (16, 32, 64, 128)
    assert {run.epochs for run in found.runs_of(32) if run.end is End.CONVERGED} == {5, 6}
    assert [run.end for run in found.runs_of(128)] == [End.CENSORED]


def test_the_price_of_an_epoch_is_that_without_profiling() -> None:
    found = record_of(folded(EASY, recurrences=30, seed=3))
    price = price_of(found, 32)
    assert [price.time_s, price.energy_j] == pytest.approx([12.0, 1200.0])  # at the better limit
    assert found.measurements.keys() == {16, 32, 64, 128}


def test_whatever_ended_before_its_target_needs_more_epochs_than_it_had() -> None:
    found = record_of(
        folding_of(
            trial(1, Outcome.CONVERGED, 5),
            trial(2, Outcome.COST_EXCEEDED, 7),
            trial(3, Outcome.INTERRUPTED, 3),
            trial(4, Outcome.CANCELLED, 2),
            trial(5, None, 4),
            trial(6, Outcome.INFEASIBLE, 0),
        )
    )
    assert ends(found) == [(End.CONVERGED, 5), *((End.CENSORED, epochs) for epochs in (7, 3, 2, 4))]
    assert len(found.paid) == 6


def test_who_gave_up_diverged_or_took_all_epochs_would_never_have_converged() -> None:
    found = record_of(
        folding_of(
            trial(1, Outcome.NOT_CONVERGED, 12), trial(2, Outcome.CANCELLED, 50), trial(3, Outcome.CONVERGED, 60)
        )
    )
    assert ends(found) == [(End.FAILED, 50)] * 3


def test_a_last_report_may_come_a_little_after_the_limit() -> None:
    often = replace(trial(1, Outcome.CONVERGED, 50.4), reports=72)  # every 0.7 epochs
    assert ends(record_of(folding_of(often))) == [(End.CONVERGED, 50.4)]


def test_a_result_that_came_late_counts() -> None:
    given_up = replace(
        trial(1, Outcome.INTERRUPTED, 6), outcome_reason=f"{LEASE_LAPSED}: unheard of", late_outcome=Outcome.CONVERGED
    )
    found = record_of(folding_of(given_up))
    assert ends(found) == [(End.CONVERGED, 6)]
    assert found.models == 1


def test_epochs_are_learnt_from_all_hardware_and_prices_and_costs_from_one_kind() -> None:
    here = [trial(number, Outcome.CONVERGED, 5) for number in (1, 2)]
    there = [trial(number, Outcome.CONVERGED, 6, hardware=OTHER) for number in (3, 4)]
    folding = folding_of(*here, *there, trial(5, Outcome.COST_EXCEEDED, 9))
    found = record_of(folding, hardware="a40")
    assert ends(found) == [(End.CONVERGED, 5)] * 2 + [(End.CONVERGED, 6)] * 2 + [(End.CENSORED, 9)]
    assert [run.priced_epochs for run in found.runs] == [5, 5, 0, 0, 9]
    assert len(found.paid) == 3
    assert record_of(folding).hardware == HARDWARE  # as many models, and used later
    assert record_of(folding, hardware=OTHER.key).hardware == OTHER


def test_a_batch_size_without_measured_energy_here_is_unknown() -> None:
    bare = [replace(trial(number, Outcome.CONVERGED, 5), is_energy_complete=False) for number in (1, 2)]
    profiled = replace(trial(3, Outcome.CONVERGED, 5), profiled=Profiled(epochs=5.0, time_s=50.0, energy_j=5000.0))
    found = record_of(folding_of(*bare, profiled))
    assert found.count(32, End.CONVERGED) == 3
    assert found.why_unknown(32) == "no epoch with its energy measured on this hardware"


def test_a_job_that_counts_time_alone_needs_no_energy() -> None:
    bare = [replace(trial(number, Outcome.CONVERGED, 5), is_energy_complete=False, energy_j=7.0) for number in (1, 2)]
    found = record_of(folding_of(*bare, eta_knob=0.0))
    assert found.why_unknown(32) is None
    assert [(run.priced_epochs, run.time_s, run.energy_j) for run in found.runs] == [(5, 50.0, 0.0)] * 2
    assert not found.has_energy([32])
    assert price_of(found, 32).time_s == 10.0


def test_the_energy_of_an_epoch_is_that_of_the_trainings_in_which_it_was_measured() -> None:
    bare = replace(trial(1, Outcome.CONVERGED, 5), is_energy_complete=False, energy_j=7.0, time_s=100.0)
    found = record_of(folding_of(bare, trial(2, Outcome.CONVERGED, 5), eta_knob=0.0))
    price = price_of(found, 32)
    assert (price.time_s, price.energy_j) == (15.0, 1000.0)
    assert found.has_energy([32])


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


def test_a_batch_size_is_known_from_a_single_training() -> None:
    found = record([run(32, 5), run(64, 9)])
    assert found.known_batch_sizes == (32, 64)
    assert [found.why_unknown(size) for size in found.batch_sizes] == ["never tried", None, None, "never tried"]
    assert found.cheapest == 32


def test_a_stopped_batch_size_is_known_only_where_it_cost_more_than_the_cheapest_one() -> None:
    found = record([run(32, 5), run(64, 6, End.CENSORED), run(128, 2, End.CENSORED)])
    assert found.known_batch_sizes == (32, 64)
    assert found.why_unknown(128) == "stopped before it was known to cost more than others"
    assert standing(found, 64).high == math.inf
    assert found.standing(128) is None


def test_a_stopped_training_shows_that_its_batch_size_costs_more_where_no_luck_explains_it() -> None:
    near, far = (record([run(32, 5), run(64, epochs, End.CENSORED)]) for epochs in (6, 12))
    assert not standing(near, 64).is_higher
    assert standing(far, 64).is_higher
    assert standing(far, 64).low < 12 * 1500.0, "the training itself may have been unlucky"


def test_what_does_not_fit_in_memory_is_known_not_to() -> None:
    found = record_of(folding_of(trial(1, Outcome.CONVERGED, 5), trial(2, Outcome.INFEASIBLE, 0, batch_size=128)))
    assert found.infeasible == {128}
    assert found.known_batch_sizes == (32, 128)
    assert found.standing(128) is None


def test_trainings_of_one_batch_size_vary_as_those_of_all_do() -> None:
    """Two trainings a factor e^0.2 apart have a variance of 0.02; the guess of 0.03 counts for four degrees."""
    assert record([run(32, 5)]).epochs_spread.variance == pytest.approx(0.03)
    pair = [replace(run(64, 10), epochs=10 * math.exp(0.2 * sign)) for sign in (0, 1)]
    assert record([run(32, 5), *pair]).epochs_spread.variance == pytest.approx((4 * 0.03 + 0.02) / 5)


def test_what_an_epoch_costs_varies_as_that_of_all_trainings_does_stopped_ones_included() -> None:
    assert record([run(32, 5)]).cost_spread.variance == pytest.approx(0.01)
    pair = [run(64, 10), priced(run(64, 2, End.CENSORED), math.exp(0.4))]
    assert record([run(32, 5), *pair]).cost_spread.variance == pytest.approx((0.01 + 0.08) / 2)


def test_expensive_trainings_count_like_cheap_ones_though_they_were_stopped_early() -> None:
    """One of 10 epochs at 1500 J, and one that was stopped after one epoch of 4500 J: an epoch costs 3000 J."""
    found = record([run(32, 10), priced(run(32, 1, End.CENSORED), 3.0)])
    assert standing(found, 32).cost == pytest.approx(10 * 3000.0)


def test_a_training_that_was_stopped_late_raises_the_epochs_of_its_batch_size_and_an_early_one_does_not() -> None:
    early, late = (record([run(32, 10), run(32, 10), run(32, epochs, End.CENSORED)]) for epochs in (2, 12))
    assert standing(early, 32).cost == pytest.approx(15_000.0)
    assert 15_500.0 < standing(late, 32).cost < 18_000.0


def test_a_cost_is_as_certain_as_so_many_trainings_make_it() -> None:
    """Variances of 0.03 and 0.01 with five degrees of freedom: 2.57 deviations of Student's t hold 95 %."""
    alone, among = standing(record([run(32, 6)]), 32), standing(record([run(32, 6)] * 9), 32)
    assert alone.cost == among.cost == 6 * 1500.0
    assert math.log(alone.high / alone.cost) == pytest.approx(2.57 * math.sqrt(0.04), rel=0.01)
    assert among.high / among.cost < alone.high / alone.cost
    assert alone.low * alone.high == pytest.approx(alone.cost**2)


def test_where_costs_vary_from_training_to_training_a_mean_is_less_certain() -> None:
    calm = record([run(32, 6)] * 4)
    wild = record([priced(run(32, 6), factor) for factor in (0.7, 0.9, 1.1, 1.4)])
    widths = [math.log(known.high / known.low) for known in (standing(calm, 32), standing(wild, 32))]
    assert widths[1] > 1.5 * widths[0]


def test_the_number_of_trainings_that_would_separate_two_batch_sizes_is_given() -> None:
    """One that takes a quarter longer than nine stands out if it comes often, one that takes thrice as long at once."""
    nine = [run(32, 10)] * 9
    found = record([*nine, run(64, 12.5), run(128, 30), run(16, 10.1)])
    of_64, of_128, of_16, of_32 = (standing(found, size) for size in (64, 128, 16, 32))
    assert (of_128.is_higher, of_128.more) == (True, None)
    assert not of_64.is_higher
    assert of_64.more
    with_more = record([*nine, *[run(64, 12.5)] * (1 + of_64.more)])
    assert standing(with_more, 64).is_higher
    assert (of_16.is_higher, of_16.more) == (False, None)
    assert (of_32.is_higher, of_32.more) == (False, None)
