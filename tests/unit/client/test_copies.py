# what a user writes has more than one statement

import os
import pickle
import sys
import traceback
from collections.abc import Callable

import pytest

from bso_client import BatchSizeOptimizer, NotInThisProcess, Outcome
from tests.unit.client.doubles import ReachableOptimizer


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked child that ends without any clean-up; returns its exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001  # whatever it is, the child must end here
            traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_may_read_its_trial_and_must_not_talk(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    for trial in bso.trials():
        with trial:

            def work() -> None:
                assert trial.batch_size == 64  # noqa: B023  # called at once
                with pytest.raises(NotInThisProcess, match="forked or spawned"):
                    trial.on_evaluate(0.1)  # noqa: B023  # called at once
                with pytest.raises(NotInThisProcess, match="forked or spawned"):
                    bso.get_batch_size()
                bso.close()

            assert in_child(work) == 0
            trial.on_evaluate(0.95)

    assert [row.outcome for row in optimizer.trials()] == [Outcome.CONVERGED]


def test_a_forked_child_may_leave_the_block_of_its_parents_trial(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer
) -> None:
    for trial in bso.trials():
        with trial:

            def work() -> None:
                error = ZeroDivisionError()
                assert not trial.__exit__(ZeroDivisionError, error, None)  # noqa: B023  # called at once

            assert in_child(work) == 0
            assert not trial.finished
            trial.on_evaluate(0.95)


def test_a_forked_child_may_make_an_optimizer_of_its_own(
    make_bso: Callable[[], BatchSizeOptimizer], optimizer: ReachableOptimizer
) -> None:
    make_bso().get_batch_size()

    def work() -> None:
        own = make_bso()
        own.get_batch_size()
        own.on_train_begin()
        own.on_evaluate(0.95)
        assert own.training_finished

    assert in_child(work) == 0


def test_pickled_copies_are_silent(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with trial:
            copies = pickle.loads(pickle.dumps((bso, trial)))
            assert (copies[0].job_id, copies[1].batch_size, copies[1].finished) == ("job", 64, False)
            with pytest.raises(NotInThisProcess):
                copies[0].get_batch_size()
            with pytest.raises(NotInThisProcess):
                copies[1].on_evaluate(0.5)
            with pytest.raises(NotInThisProcess):
                next(iter(copies[0].trials()))
            copies[0].close()
            trial.on_evaluate(0.95)


@pytest.mark.parametrize("has_begun", [True, False])
def test_an_optimizer_that_nobody_holds_any_more_gives_its_trial_up(
    optimizer: ReachableOptimizer, *, has_begun: bool
) -> None:
    from tests.servers.waiting import eventually
    from tests.unit.client.doubles import HARDWARE, ScriptedMonitor, job_spec

    bso = BatchSizeOptimizer(job_spec(), transport=optimizer, monitor=ScriptedMonitor(), hardware=HARDWARE)
    bso.get_batch_size()
    if has_begun:
        bso.on_train_begin()
    del bso

    eventually(lambda: optimizer.is_closed)
    assert optimizer.trials()[0].outcome is (Outcome.INTERRUPTED if has_begun else Outcome.CANCELLED)
