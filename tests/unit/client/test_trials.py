# ruff: noqa: PT012  # what a user writes has more than one statement

import contextlib
import logging
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from bso.domain.commands import BeginTrial, FinishTrial, RegisterJob, ReportEpoch
from bso.domain.trial import OUT_OF_MEMORY, TrialState, reason_code
from bso_client import RELAUNCH, BatchSizeOptimizer, InvalidReport, Outcome, TrainFailed, Trial, WrongOrder
from tests.unit.client.doubles import ReachableOptimizer, ScriptedMonitor, job_spec
from tests.unit.client.fixtures import MakeOptimizer


def train(trial: Trial, metrics: list[float]) -> None:
    for metric in metrics:
        if trial.finished:
            return
        trial.on_evaluate(metric)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


class OutOfMemoryError(RuntimeError):
    """Looks like torch's."""

    __module__ = "torch"
    __qualname__ = "OutOfMemoryError"


def test_a_recurrence_ends_with_the_first_trial_that_converges(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    seen = []
    for trial in bso.trials():
        seen.append(trial)
        with trial:
            while not trial.finished:
                trial.on_evaluate(0.5 if trial.epoch < 2 else 0.95)

    assert [trial.batch_size for trial in seen] == [64]
    assert (seen[0].converged, seen[0].outcome, seen[0].epoch, seen[0].metric) == (True, Outcome.CONVERGED, 3.0, 0.95)
    assert seen[0].cost == 30.0
    assert optimizer.trials()[0].cost == 30.0
    assert [type(request.command) for request in optimizer.requests] == [
        RegisterJob,
        BeginTrial,
        ReportEpoch,
        ReportEpoch,
        ReportEpoch,
    ]


def test_threads_that_evaluate_at_once_take_turns(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    for trial in make_bso(job_spec(max_epochs=100)).trials():
        with trial, ThreadPoolExecutor(8) as threads:
            list(threads.map(trial.on_evaluate, [0.1] * 40))
            trial.on_evaluate(0.95)
    assert [report.epoch for report in optimizer.commands(ReportEpoch)] == list(range(1, 42))
    assert [(trial.reports, trial.cost) for trial in optimizer.trials()] == [(41, 410.0)]


def test_a_batch_size_that_does_not_converge_moves_on_to_the_next_trial(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    seen = []
    for trial in bso.trials():
        seen.append(trial)
        with trial:
            while not trial.finished:
                trial.on_evaluate(0.1 if trial.attempt == 1 else 0.95)

    assert [trial.outcome for trial in seen] == [Outcome.NOT_CONVERGED, Outcome.CONVERGED]
    assert [trial.attempt for trial in seen] == [1, 2]
    assert len({trial.recurrence_id for trial in seen}) == 1
    assert seen[0].epoch == 5.0


def test_the_last_attempt_leaves_the_loop_even_without_a_model(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []
    for trial in bso.trials():
        seen.append(trial)
        with trial:
            while not trial.finished:
                trial.on_evaluate(0.1)

    assert len(seen) == 3
    assert [trial.is_last_attempt for trial in seen] == [False, False, True]
    assert "recurrence_without_model" in [getattr(record, "action", "") for record in caplog.records]


def test_a_script_that_catches_what_its_training_raises_does_not_train_for_ever(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    bso = make_bso(job_spec(max_attempts=2))
    for trial in bso.trials():
        with contextlib.suppress(RuntimeError), trial:
            raise RuntimeError("a bug of the script")

    assert [row.outcome for row in optimizer.trials()] == [Outcome.INTERRUPTED] * 2
    [words] = [each.getMessage() for each in caplog.records if getattr(each, "action", "") == "trials_interrupted"]
    assert "2 trials of this loop ended with an exception" in words
    assert words.endswith("the last was RuntimeError: a bug of the script")


def test_one_exception_that_is_caught_does_not_end_the_loop(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    for trial in bso.trials():
        with contextlib.suppress(RuntimeError), trial:
            if trial.trial_number == 1:
                raise RuntimeError("a node is gone")
            trial.on_evaluate(0.95)

    assert [row.outcome for row in optimizer.trials()] == [Outcome.INTERRUPTED, Outcome.CONVERGED]


def test_the_next_loop_is_the_next_recurrence(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    for _ in range(3):
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.95)

    assert [trial.recurrence_id for trial in optimizer.trials()] == ["recurrence-1", "recurrence-2", "recurrence-3"]
    assert len(optimizer.commands(RegisterJob)) == 1


def test_a_given_recurrence_id_gets_a_number_in_later_loops(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    bso = make_bso(recurrence_id="monday")
    for _ in range(2):
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.95)

    assert [trial.recurrence_id for trial in optimizer.trials()] == ["monday", "monday-2"]


def test_a_costly_trial_is_stopped(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    monitor.energy_j = 25.0
    seen = []
    for trial in bso.trials():
        seen.append((trial.bound, trial))
        with trial:
            while not trial.finished:
                trial.on_evaluate(0.5)
            monitor.energy_j = 1.0

    assert seen[0][0] is not None
    assert 10.0 < seen[0][0] < 25.0
    assert seen[0][1].outcome is Outcome.COST_EXCEEDED
    assert "above the bound" in seen[0][1].outcome_reason


def test_an_exception_is_reported_with_its_text_and_goes_on(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(ValueError, match="bad labels"):
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                raise ValueError("bad labels\nin shard 7")

    trial_row = optimizer.trials()[0]
    assert (trial_row.outcome, trial_row.outcome_reason) == (
        Outcome.INTERRUPTED,
        "ValueError: bad labels in shard 7",
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), MemoryError()])
def test_ending_the_process_inside_a_trial_is_an_interruption(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        for trial in bso.trials():
            with trial:
                raise error

    assert optimizer.trials()[0].outcome is Outcome.INTERRUPTED
    assert optimizer.trials()[0].outcome_reason.startswith(type(error).__name__)


def test_a_gpu_out_of_memory_goes_on_with_a_smaller_batch_size(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = []
    for trial in bso.trials():
        sizes.append(trial.batch_size)
        with trial:
            if trial.batch_size > 32:
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            trial.on_evaluate(0.95, epoch=2.0)

    assert sizes == [64, 32]
    first = optimizer.trials()[0]
    assert (first.outcome, reason_code(first.outcome_reason)) == (Outcome.INFEASIBLE, OUT_OF_MEMORY)
    assert "does not fit" in first.outcome_reason
    assert warnings_in(caplog) == ["batch size 64 does not fit in memory; going on with a smaller one"]


def test_out_of_memory_goes_on_as_an_exception_when_no_attempt_is_left(
    make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    bso = make_bso(job_spec(max_attempts=1))
    with pytest.raises(OutOfMemoryError):
        for trial in bso.trials():
            with trial:
                raise OutOfMemoryError("CUDA out of memory")

    assert warnings_in(caplog) == ["batch size 64 does not fit in memory; no attempt is left"]


def test_the_name_of_a_job_that_had_none_is_announced_once_where_everybody_sees_it(
    make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    bso = make_bso(job_spec(job_id=None, job_id_prefix="digits"))
    for metric in (0.5, 0.95):
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(metric)
            break

    [words] = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "job_registered"]
    assert f"registered as {bso.job_id}: pass job_id (or BSO_JOB_ID)" in words
    assert words in warnings_in(caplog)


def test_a_break_after_the_training_leaves_it_not_converged(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.5)
        break

    row = optimizer.trials()[0]
    assert row.outcome is Outcome.NOT_CONVERGED
    assert row.outcome_reason == (
        "the training ended before it reached the target 0.9: the metric was 0.5 after 1 epoch"
    )


def test_a_break_inside_the_training_ends_the_trial(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    for trial in bso.trials():
        with trial:
            break

    assert optimizer.trials()[0].outcome_reason == "the training ended before its first evaluation"


def test_a_break_before_the_training_calls_the_trial_off(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    for _trial in bso.trials():
        break

    assert optimizer.trials()[0].outcome is Outcome.CANCELLED


def test_a_loop_without_a_training_is_an_error_not_an_endless_loop(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(WrongOrder, match="with trial:"):
        for _trial in bso.trials():
            pass

    assert optimizer.trials()[0].outcome is Outcome.CANCELLED


def test_nothing_is_sent_after_a_stop(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    before = 0
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
            before = len(optimizer.requests)
            trial.on_evaluate(0.96)
            trial.on_evaluate(0.97)

    assert len(optimizer.requests) == before
    assert optimizer.commands(FinishTrial) == []


def test_training_on_after_a_failure_ends_the_block_and_the_loop_goes_on(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    evaluations = []
    for trial in bso.trials():
        with trial:
            for _ in range(10):  # never looks at trial.finished
                trial.on_evaluate(0.1 if trial.attempt == 1 else 0.95)
                evaluations.append(trial.attempt)

    assert evaluations.count(1) == 5
    assert optimizer.trials()[-1].outcome is Outcome.CONVERGED


def test_an_exception_after_convergence_leaves_the_trial_converged(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(OSError, match="disk full"):
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.95)
                raise OSError("disk full")

    assert optimizer.trials()[0].outcome is Outcome.CONVERGED


@pytest.mark.parametrize(
    "metrics", [[math.nan, math.nan], [0.5, math.inf, math.nan], [math.nan, 0.5, math.nan, -math.inf]]
)
def test_a_metric_that_is_no_number_twice_in_a_row_has_diverged(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, metrics: list[float]
) -> None:
    for trial in bso.trials():
        with trial:
            train(trial, metrics)
        break

    row = optimizer.trials()[0]
    assert (row.outcome, row.outcome_reason.split(":")[0]) == (Outcome.NOT_CONVERGED, "diverged")


def test_progress_may_be_given_in_epochs_or_samples(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso = make_bso(samples_per_epoch=1000)
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1, epoch=0.5)
            trial.on_evaluate(0.2, samples=1500)
            trial.on_evaluate(0.95)

    assert [report.epoch for report in optimizer.commands(ReportEpoch)] == [0.5, 1.5, 2.5]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epoch": 1.0, "samples": 5}, "not both"),
        ({"samples": 5}, "samples_per_epoch"),
        ({"epoch": 1.0}, "must grow"),
        ({"epoch": 0.5}, "must grow"),
        (
            {"epoch": 0},
            "must be a positive number of epochs of at most 1e[+]18, got 0; .*epoch is 1 after the first one",
        ),
        ({"epoch": math.nan}, "must be a positive number of epochs .*, got nan"),
        ({"epoch": math.inf}, "must be a positive number of epochs .*, got inf"),
        ({"epoch": 1e19}, "must be a positive number of epochs .*, got 1e[+]19"),
        ({"epoch": "third"}, "epoch must be one number, got str: 'third'"),
    ],
)
def test_wrong_progress_is_an_error_of_use(bso: BatchSizeOptimizer, arguments: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidReport, match=words):
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                trial.on_evaluate(0.2, **arguments)


@pytest.mark.parametrize("metric", ["0.5", "0.5%", b"0.25", None, [1, 2], object(), 10**400])
def test_a_metric_must_be_one_number(bso: BatchSizeOptimizer, metric: object) -> None:
    with pytest.raises(InvalidReport, match="a metric is one number"):
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(metric)  # type: ignore[arg-type]  # that is what is tested


def test_a_trial_trains_once_and_evaluates_inside_its_block(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with pytest.raises(WrongOrder, match="with trial"):
            trial.on_evaluate(0.5)
        with trial:
            trial.on_evaluate(0.95)
        with pytest.raises(WrongOrder, match="trains once"), trial:
            pass


def test_a_second_batch_size_needs_the_end_of_the_first(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with pytest.raises(WrongOrder, match="was given already"):
            bso.get_batch_size()
        with trial:
            with pytest.raises(WrongOrder, match="a training is running"):
                bso.get_batch_size()
            trial.on_evaluate(0.95)


def test_pauses_are_left_out_of_time_and_energy(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    for trial in bso.trials():
        with trial:
            with bso.paused():
                assert monitor.windows == []
                with bso.paused():
                    pass
                assert monitor.windows == []
            assert len(monitor.windows) == 1
            trial.on_evaluate(0.95)
            with bso.paused():
                pass
            assert monitor.windows == []

    assert optimizer.trials()[0].energy_j == 20.0  # before and after the pause


@pytest.mark.parametrize("energy_j", [math.nan, -1.0, math.inf])
def test_energy_that_cannot_be_measured_is_reported_as_unknown(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor, energy_j: float
) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            monitor.energy_j = energy_j
            trial.on_evaluate(0.95)

    assert [report.energy_j for report in optimizer.commands(ReportEpoch)] == [10.0, None]


def test_a_monitor_that_fails_does_not_end_a_training(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    monitor.error = RuntimeError("GPU is lost")
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)

    assert optimizer.commands(ReportEpoch)[0].energy_j is None
    assert optimizer.trials()[0].outcome is Outcome.CONVERGED


def test_each_decision_is_logged_once_with_its_reason(
    bso: BatchSizeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bso")
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)

    begun = [record for record in caplog.records if getattr(record, "action", "") == "trial_begun"]
    assert [record.getMessage() for record in begun] == [
        "trial 1: batch size 64: nothing has converged yet; 64 is the default"
    ]


def test_an_exception_between_the_trials_ends_the_loop(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    with pytest.raises(OSError, match="no data"):
        for _trial in bso.trials():
            raise OSError("no data")

    assert optimizer.trials()[0].state is TrialState.ENDED


def test_train_failed_of_somebody_else_is_not_swallowed_while_the_trial_runs(bso: BatchSizeOptimizer) -> None:
    other = TrainFailed(
        batch_size=1, trial_number=9, outcome=Outcome.NOT_CONVERGED, reason="another one", should_retry=True
    )
    with pytest.raises(TrainFailed, match="another one"):
        for trial in bso.trials():
            with trial:
                raise other


def test_a_trial_knows_whether_it_has_begun_and_how_it_failed(bso: BatchSizeOptimizer) -> None:
    trials = bso.trials()
    trial = next(trials)
    assert (trial.has_begun, trial.failure) == (False, None)
    with trial:
        assert (trial.has_begun, trial.failure) == (True, None)

    assert trial.failure is not None
    assert (trial.failure.batch_size, trial.failure.exit_code) == (64, RELAUNCH)


def test_a_job_without_a_name_is_the_same_job_after_closing(make_bso: MakeOptimizer) -> None:
    bso = make_bso(job_spec(job_id=None, job_id_prefix="digits"))
    bso.get_batch_size()
    name = bso.job_id
    bso.close()
    assert bso.job_id == name
    bso.get_batch_size()
    assert bso.job_id == name


def test_a_target_that_the_first_evaluation_reaches_is_doubted_once(
    make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        for trial in make_bso().trials():
            with trial:
                trial.on_evaluate(2.3)
            assert trial.converged
    [warning] = warnings_in(caplog)
    assert "reached the target 0.9 after 1 epoch, with the first evaluation: is higher_is_better_metric" in warning
