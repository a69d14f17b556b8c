"""Power profiles on their way to the optimizer and back, and the marks of the epochs that were profiled."""

import json
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, PowerMeasurement, RenewLease, ReportEpoch, ReportPowerProfile
from bso.domain.learning_rate import LearningRate
from bso_client import AsyncBatchSizeOptimizer, BatchSizeOptimizer, NearestPowerProfile, Outcome, Trial
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, ScriptedMonitor, job_spec
from tests.unit.client.fixtures import MakeOptimizer

PROFILE = (
    PowerMeasurement(power_limit_w=300.0, average_power_w=280.0, samples_per_s=1000.0),
    PowerMeasurement(power_limit_w=200.0, average_power_w=190.0, samples_per_s=900.0),
)


def test_the_next_trial_with_the_same_batch_size_receives_the_profile(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    bso = make_bso(job_spec(batch_sizes=[64]))
    for trial in bso.trials():
        with trial:
            assert (trial.power_profile, trial.hardware) == ((), HARDWARE)
            trial.report_power_profile(list(PROFILE))
            assert trial.power_profile == PROFILE
            trial.on_evaluate(0.95)
    [sent] = optimizer.commands(ReportPowerProfile)
    assert (sent.batch_size, sent.hardware, sent.measurements) == (64, HARDWARE, PROFILE)

    for trial in bso.trials():
        with trial:
            assert (trial.batch_size, trial.power_profile) == (64, PROFILE)
            trial.on_evaluate(0.95)


def test_a_trial_of_another_batch_size_receives_the_profile_of_the_nearest_until_it_has_its_own(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    bso = make_bso(job_spec(batch_sizes=[32, 64], default_batch_size=64))
    for trial in bso.trials():
        with trial:
            assert trial.nearest_power_profile is None
            trial.report_power_profile(PROFILE)
            trial.on_evaluate(0.95)
    for trial in bso.trials():
        with trial:
            assert (trial.batch_size, trial.power_profile) == (32, ())
            known = trial.nearest_power_profile
            assert known == NearestPowerProfile(batch_size=64, measurements=PROFILE)
            trial.report_power_profile(PROFILE[:1])
            assert (trial.power_profile, trial.nearest_power_profile) == (PROFILE[:1], None)
            trial.on_evaluate(0.95)


def test_a_resumed_training_receives_its_profile(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso = make_bso()
    bso.get_batch_size()
    bso.on_train_begin()
    trial = bso.trial
    assert trial is not None
    trial.report_power_profile(PROFILE)
    state = bso.state_dict()
    bso.close()

    bso = make_bso()
    bso.load_state_dict(state)
    bso.get_batch_size()
    assert bso.trial is not None
    assert bso.trial.power_profile == PROFILE
    assert [command.is_resumption for command in optimizer.commands(RenewLease)] == [True]


def resumed(make_bso: MakeOptimizer, state: dict[str, Any]) -> BatchSizeOptimizer:
    """The next process of a training, which goes on from its checkpoint."""
    bso = make_bso()
    bso.load_state_dict(json.loads(json.dumps(state)))
    bso.get_batch_size()
    bso.on_train_begin()
    return bso


def marks(optimizer: ReachableOptimizer) -> list[tuple[float, bool]]:
    """The epochs that were reported, and which of them are marked."""
    return [(command.epoch, command.is_profiling) for command in optimizer.commands(ReportEpoch)]


def test_a_mark_is_part_of_a_checkpoint(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    bso = make_bso()
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    assert bso.trial is not None
    bso.trial.mark_profiling()
    monitor.energy_j = 500.0
    state = bso.state_dict()
    bso.close()

    bso = resumed(make_bso, state)
    monitor.energy_j = 10.0
    bso.on_evaluate(0.2)
    bso.on_evaluate(0.95)
    assert marks(optimizer) == [(1.0, False), (2.0, True), (3.0, False)]
    [row] = optimizer.trials()
    assert (row.cost, row.energy_j) == (30.0, 530.0)


def test_an_epoch_that_is_trained_again_is_not_counted_and_neither_is_its_mark(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    bso = make_bso()
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    bso.on_evaluate(0.2)  # reported, and trained again after the checkpoint
    bso.close()

    bso = resumed(make_bso, state)
    assert bso.trial is not None
    bso.trial.mark_profiling()
    for metric in (0.2, 0.3, 0.95):
        bso.on_evaluate(metric)
    assert marks(optimizer) == [(1.0, False), (2.0, False), (3.0, False), (4.0, False)]


def test_the_first_pass_through_an_epoch_counts(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    bso = make_bso()
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    state = bso.state_dict()
    assert bso.trial is not None
    bso.trial.mark_profiling()
    monitor.energy_j = 500.0
    bso.on_evaluate(0.2)  # reported, slow, and trained again after the checkpoint
    bso.close()

    bso = resumed(make_bso, state)
    monitor.energy_j = 10.0
    for metric in (0.2, 0.3, 0.95):
        bso.on_evaluate(metric)
    assert marks(optimizer) == [(1.0, False), (2.0, True), (3.0, False), (4.0, False)]
    [row] = optimizer.trials()
    assert (row.outcome, row.energy_j, row.cost) == (Outcome.CONVERGED, 540.0, 40.0)


def test_a_profile_that_is_refused_disturbs_nobody(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    for trial in bso.trials():
        with trial:
            trial.report_power_profile(())
            trial.on_evaluate(0.95)
    assert bso.trial is not None
    assert bso.trial.converged
    assert [record.__dict__.get("problem") for record in caplog.records if "profile" in record.message] == [
        "invalid_power_profile"
    ]


def test_a_profile_waits_for_an_optimizer_that_is_away(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso = make_bso()
    bso.get_batch_size()
    bso.on_train_begin()
    optimizer.is_away = True
    assert bso.trial is not None
    bso.trial.report_power_profile(PROFILE)
    assert optimizer.commands(ReportPowerProfile) == []
    optimizer.is_away = False
    bso.close(timeout=30.0)
    assert [command.measurements for command in optimizer.commands(ReportPowerProfile)] == [PROFILE]


def test_only_the_report_being_measured_is_marked_and_costs_what_others_cost(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            trial.mark_profiling()
            monitor.energy_j = 500.0
            trial.on_evaluate(0.2)
            monitor.energy_j = 10.0
            assert trial.cost == 20.0
            trial.on_evaluate(0.95)
    assert [command.is_profiling for command in optimizer.commands(ReportEpoch)] == [False, True, False]
    assert bso.trial is not None
    assert (bso.trial.cost, optimizer.trials()[0].energy_j) == (30.0, 520.0)


def test_the_client_alone_judges_by_the_cost_without_profiling(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    def train(energies_j: list[float], *, profiled: int) -> Trial:
        """An epoch for each energy, all but the first out of the optimizer's reach."""
        trial = next(trials := bso.trials())
        with trial:
            for number, energy_j in enumerate(energies_j):
                monitor.energy_j = energy_j
                if number == profiled:
                    trial.mark_profiling()
                trial.on_evaluate(0.95 if energy_j is energies_j[-1] else 0.1)
                optimizer.is_away = True
                if trial.finished:
                    break
        optimizer.is_away = False
        next(trials, None)
        return trial

    assert train([10.0], profiled=-1).cost == 10.0
    judged = train([5.0, 400.0, 6.0], profiled=1)
    assert judged.converged
    assert train([5.0, 400.0, 6.0], profiled=-1).outcome is Outcome.COST_EXCEEDED


def test_the_learning_rate_goes_with_every_trial(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    rate = LearningRate(0.1, reference_batch_size=64, rule="square_root")
    bso = make_bso(learning_rate=rate)
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    assert [command.learning_rate for command in optimizer.commands(BeginTrial)] == [rate]
    assert optimizer.trials()[0].learning_rate == rate


async def test_an_asynchronous_training_reports_its_profile_too(
    optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    async with AsyncBatchSizeOptimizer(job_spec(), transport=optimizer, monitor=monitor, hardware=HARDWARE) as bso:
        async for trial in bso.trials():
            async with trial:
                trial.mark_profiling()
                await trial.report_power_profile(PROFILE)
                await trial.on_evaluate(0.95)
    assert [command.measurements for command in optimizer.commands(ReportPowerProfile)] == [PROFILE]
    assert [command.is_profiling for command in optimizer.commands(ReportEpoch)] == [True]
