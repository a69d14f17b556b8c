"""A trial that somebody else's training loop ends or keeps: what integrations do with it."""

import pytest

from bso.domain.trial import Outcome
from bso_client import BatchSizeOptimizer
from tests.unit.client.doubles import ReachableOptimizer, job_spec
from tests.unit.client.fixtures import MakeOptimizer


def test_calling_a_trial_off_ends_the_loop_and_says_nothing_about_its_batch_size(
    bso: BatchSizeOptimizer, optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    trials = []
    for trial in bso.trials():
        trials.append(trial)
        with trial:
            trial.call_off("nobody evaluated it")

    assert [(trial.outcome, trial.outcome_reason) for trial in trials] == [(Outcome.CANCELLED, "nobody evaluated it")]
    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CANCELLED]
    assert "as it was trained, but nothing was learnt about batch size 64: nobody evaluated it" in caplog.text
    assert "no model" not in caplog.text


def test_an_interrupted_trial_that_gave_its_state_can_be_resumed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    states = []
    for trial in make_bso().trials():
        with trial:
            trial.on_evaluate(0.1)
            states.append(trial.state_dict())
            trial.interrupt("the process was noted to end")
    again = make_bso()
    again.load_state_dict(states[0])
    for trial in again.trials():
        with trial:
            trial.on_evaluate(0.95)

    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CONVERGED]


def test_calling_off_changes_nothing_after_an_end(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
            trial.call_off("too late")

        assert trial.outcome is Outcome.CONVERGED


def test_the_state_that_a_trial_gives_resumes_it(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    trials = make_bso().trials()
    trial = next(trials).__enter__()
    trial.on_evaluate(0.1, epoch=1.5)
    second = make_bso()
    second.load_state_dict(trial.state_dict())
    trials_of_second = second.trials()
    resumed = next(trials_of_second)

    assert (resumed.trial_number, resumed.epoch) == (1, 1.5)


def test_a_trial_knows_what_its_job_specifies(make_bso: MakeOptimizer) -> None:
    trials = make_bso(job_spec(max_epochs=7)).trials()
    trial = next(trials)

    assert (trial.spec.max_epochs, trial.spec.target_metric) == (7, 0.9)
