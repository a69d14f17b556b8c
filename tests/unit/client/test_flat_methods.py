# ruff: noqa: PT012  # what a user writes has more than one statement

import re
from collections.abc import Callable

import pytest

from bso.domain.commands import BeginTrial
from bso_client import RELAUNCH, BatchSizeOptimizer, Outcome, TrainFailed, WrongOrder
from tests.unit.client.doubles import ReachableOptimizer, job_spec

MakeOptimizer = Callable[..., BatchSizeOptimizer]


class OutOfMemoryError(RuntimeError):
    """Looks like torch's."""

    __module__ = "torch.cuda"
    __qualname__ = "OutOfMemoryError"


def train(bso: BatchSizeOptimizer, metric: float) -> None:
    bso.get_batch_size()
    bso.on_train_begin()
    while not bso.training_finished:
        bso.on_evaluate(metric)


def test_a_training_as_with_zeus(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    assert bso.get_batch_size() == 64
    bso.on_train_begin()
    metrics = iter([0.2, 0.5, 0.95])
    while not bso.training_finished:
        bso.on_evaluate(next(metrics))

    assert bso.trial is not None
    assert bso.trial.converged
    assert optimizer.trials()[0].outcome is Outcome.CONVERGED


def test_a_failed_batch_size_raises_train_failed_which_asks_to_be_launched_again(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(TrainFailed, match="batch size 64 failed") as raised:
        train(bso, 0.1)

    failure = raised.value
    assert (failure.batch_size, failure.trial_number, failure.outcome) == (64, 1, Outcome.NOT_CONVERGED)
    assert (failure.should_retry, failure.exit_code) == (True, RELAUNCH)
    assert "launch the training again, it gets another batch size" in str(failure)
    assert bso.training_finished


def test_training_on_raises_train_failed_again(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    with pytest.raises(TrainFailed):
        train(bso, 0.1)
    before = len(optimizer.requests)
    with pytest.raises(TrainFailed):
        bso.on_evaluate(0.2)

    assert len(optimizer.requests) == before


def test_the_last_failure_asks_for_nothing_more(make_bso: MakeOptimizer) -> None:
    bso = make_bso(job_spec(max_attempts=1))
    with pytest.raises(TrainFailed, match="no attempt is left") as raised:
        train(bso, 0.1)

    assert raised.value.exit_code == 1


def test_the_next_batch_size_may_be_asked_for_in_the_same_process(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(TrainFailed):
        train(bso, 0.1)
    train(bso, 0.95)

    assert len({trial.recurrence_id for trial in optimizer.trials()}) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda bso: bso.on_train_begin(),
        lambda bso: bso.on_evaluate(0.5),
        lambda bso: bso.training_finished,
        lambda bso: bso.paused().__enter__(),
        lambda bso: bso.state_dict(),
    ],
    ids=["on_train_begin", "on_evaluate", "training_finished", "paused", "state_dict"],
)
def test_everything_needs_a_batch_size_first(
    bso: BatchSizeOptimizer, call: Callable[[BatchSizeOptimizer], None]
) -> None:
    with pytest.raises(WrongOrder, match=r"get_batch_size\(\): that comes first"):
        call(bso)


def test_an_evaluation_needs_the_begin_of_the_training_first(bso: BatchSizeOptimizer) -> None:
    bso.get_batch_size()
    with pytest.raises(WrongOrder, match="on_train_begin"):
        bso.on_evaluate(0.5)


def test_a_training_begins_once(bso: BatchSizeOptimizer) -> None:
    bso.get_batch_size()
    bso.on_train_begin()
    with pytest.raises(WrongOrder, match="begun already"):
        bso.on_train_begin()


def test_a_second_batch_size_needs_a_training_between(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso.get_batch_size()
    with pytest.raises(WrongOrder, match="the training comes next"):
        bso.get_batch_size()

    assert len(optimizer.commands(BeginTrial)) == 1


def test_relaunching_exits_with_the_code_that_asks_for_another_launch(
    bso: BatchSizeOptimizer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, bso.relaunching():
        train(bso, 0.1)

    assert ended.value.code == RELAUNCH
    assert "batch size 64 failed (not_converged)" in capsys.readouterr().err


def test_relaunching_takes_out_of_memory_for_a_failure_of_the_batch_size(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(SystemExit) as ended, bso.relaunching():
        bso.get_batch_size()
        bso.on_train_begin()
        raise OutOfMemoryError("CUDA out of memory")

    assert ended.value.code == RELAUNCH
    assert optimizer.trials()[0].outcome is Outcome.INFEASIBLE


def test_relaunching_lets_an_error_after_a_model_go_its_way(bso: BatchSizeOptimizer) -> None:
    with pytest.raises(OutOfMemoryError), bso.relaunching():
        train(bso, 0.95)
        raise OutOfMemoryError("while the model was exported")


def test_relaunching_leaves_everything_else_alone(bso: BatchSizeOptimizer) -> None:
    with pytest.raises(ZeroDivisionError), bso.relaunching():
        _ = 1 / 0


def test_a_training_that_an_exception_leaves_ends_with_its_block_and_the_next_one_begins(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    def cell(*, is_interrupted: bool) -> None:
        with bso.relaunching():
            bso.get_batch_size()
            bso.on_train_begin()
            bso.on_evaluate(0.1)
            if is_interrupted:
                raise KeyboardInterrupt
            bso.on_evaluate(0.95)

    with pytest.raises(KeyboardInterrupt):
        cell(is_interrupted=True)
    cell(is_interrupted=False)
    ends = [(trial.outcome, trial.outcome_reason) for trial in optimizer.trials()]
    assert ends[0] == (Outcome.INTERRUPTED, "KeyboardInterrupt")
    assert [outcome for outcome, _ in ends[1:]] == [Outcome.CONVERGED]


def test_a_trial_that_an_exception_leaves_before_its_training_is_called_off(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(ZeroDivisionError), bso.relaunching():
        _ = bso.get_batch_size() / 0
    train(bso, 0.95)
    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CANCELLED, Outcome.CONVERGED]


def test_a_training_without_a_block_names_what_ends_it(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso.get_batch_size()
    with pytest.raises(WrongOrder, match=re.escape("bso.close(), which calls the trial off")):
        bso.get_batch_size()
    bso.on_train_begin()
    with pytest.raises(WrongOrder, match=re.escape("bso.close() ends one that was interrupted")):
        bso.get_batch_size()
    bso.close()
    train(bso, 0.95)
    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.INTERRUPTED, Outcome.CONVERGED]


def test_closing_ends_what_runs(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso.get_batch_size()
    bso.on_train_begin()
    bso.close()
    bso.close()

    assert (optimizer.trials()[0].outcome, optimizer.trials()[0].outcome_reason) == (
        Outcome.INTERRUPTED,
        "the optimizer was closed",
    )
    assert optimizer.is_closed


def test_a_with_block_around_the_optimizer_records_why_it_was_left(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    with pytest.raises(OSError, match="no space"), make_bso() as bso:
        bso.get_batch_size()
        bso.on_train_begin()
        raise OSError("no space")

    assert optimizer.trials()[0].outcome_reason == "OSError: no space"


def test_a_closed_optimizer_opens_again_at_its_next_use(bso: BatchSizeOptimizer, optimizer: ReachableOptimizer) -> None:
    train(bso, 0.95)
    bso.close()
    train(bso, 0.95)

    assert len(optimizer.trials()) == 2
