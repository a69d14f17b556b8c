import pytest

from bso.domain.trial import Outcome
from tests.training.distributed.torchrun import Launched, launch


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    done = launch("life", tmp_path_factory.mktemp("life"))
    assert done.codes == (0,), done.printed
    return done


def test_loops_that_all_ranks_leave_early(done: Launched) -> None:
    first, second, third = done.trials("early")
    assert (first.outcome, first.outcome_reason) == (Outcome.CANCELLED, "its training was never begun")
    assert second.outcome is Outcome.NOT_CONVERGED
    assert done.same("left") == [second.outcome_reason]
    assert third.outcome is Outcome.INTERRUPTED
    assert third.outcome_reason == "KeyError: 'label 0'"
    assert done.of_all("raised") == [[["KeyError", "'label 0'"]], [["KeyError", "'label 1'"]]]


def test_flat_methods_before_and_after_the_process_group_was_made_anew(done: Launched) -> None:
    assert done.same("size") == [64, 32]
    assert done.same("converged") == [True, True]
    [job_id, again] = done.same("job")
    assert job_id.startswith("flat-")
    assert again == job_id
    assert [trial.outcome for trial in done.trials(job_id)] == [Outcome.CONVERGED] * 2


def test_a_batch_is_divided_among_the_data_parallel_group_only(done: Launched) -> None:
    assert done.same("pipeline") == [31]


def test_a_checkpoint_of_rank_0_is_enough(done: Launched) -> None:
    assert done.same("preempted") == [["KeyError"]]
    assert done.same("resumed") == [[1, True, 1.0], [2, False, 0.0]]
    assert [trial.outcome for trial in done.trials("resumed")] == [Outcome.CONVERGED] * 2


def test_the_asynchronous_optimizer_does_the_same(done: Launched) -> None:
    assert done.same("asynchronous") == ["converged"]
    assert len(done.trials("async")) == 1
