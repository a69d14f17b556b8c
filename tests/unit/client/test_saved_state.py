# ruff: noqa: PT012  # what a user writes has more than one statement

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bso.domain.commands import BeginTrial, FinishTrial, RenewLease, ReportEpoch
from bso.domain.trial import TrialState
from bso_client import BatchSizeOptimizer, CannotResume, Outcome, WrongOrder
from tests.servers.waiting import eventually
from tests.unit.client.doubles import ReachableOptimizer, ScriptedMonitor, job_spec
from tests.unit.client.fixtures import MakeOptimizer


def preempted(make_bso: MakeOptimizer, *, epochs: int = 1, lost_epochs: int = 0) -> dict[str, Any]:
    """A training that saved its state after some epochs and was ended some epochs later."""
    bso = make_bso()
    bso.get_batch_size()
    bso.on_train_begin()
    for _ in range(epochs):
        bso.on_evaluate(0.1)
    state = bso.state_dict()
    for _ in range(lost_epochs):
        bso.on_evaluate(0.2)
    bso.close()
    return state


def begun_alone(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> BatchSizeOptimizer:
    """A training that runs while the optimizer, which knows one trial of its job, is away."""
    with make_bso() as first:
        first.get_batch_size()
    optimizer.is_away = True
    alone = make_bso()
    alone.get_batch_size()
    alone.on_train_begin()
    return alone


def test_a_preempted_trial_is_suspended_and_goes_on_in_the_next_process(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    state = json.loads(json.dumps(preempted(make_bso, epochs=2)))
    assert optimizer.trials()[0].state is TrialState.SUSPENDED
    assert optimizer.commands(FinishTrial)[0].may_resume

    bso = make_bso()
    bso.load_state_dict(state)
    assert bso.get_batch_size() == 64
    assert optimizer.trials()[0].state is TrialState.RUNNING
    bso.on_train_begin()
    bso.on_evaluate(0.95)

    row = optimizer.trials()[0]
    # two epochs and the beginning of a third until state_dict, then the rest of the third
    assert (row.outcome, row.epoch, row.energy_j) == (Outcome.CONVERGED, 3.0, 40.0)
    assert len(optimizer.commands(BeginTrial)) == 1


@pytest.mark.parametrize("way", ["the process ends", "an exception", "the loop is left"])
def test_a_resumed_trial_that_has_not_gone_on_yet_can_be_resumed_again(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, way: str
) -> None:
    state = preempted(make_bso, epochs=2)
    bso = make_bso()
    bso.load_state_dict(state)
    with contextlib.suppress(OSError):
        for trial in bso.trials():
            assert trial.is_resumed
            if way == "an exception":
                raise OSError("the checkpoint is not there yet")
            if way == "the process ends":
                bso.close()
            break
    row = optimizer.trials()[0]
    assert (row.state, row.epoch) == (TrialState.SUSPENDED, 2.0)
    bso = make_bso()
    bso.load_state_dict(state)
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    assert [(row.outcome, row.epoch) for row in optimizer.trials()] == [(Outcome.CONVERGED, 3.0)]


def test_epochs_that_are_trained_again_are_not_reported_again(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    state = preempted(make_bso, epochs=1, lost_epochs=2)
    bso = make_bso()
    bso.load_state_dict(state)
    for trial in bso.trials():
        assert trial.epoch == 1.0
        with trial:
            for metric in (0.2, 0.3, 0.95):
                trial.on_evaluate(metric)

    assert [report.epoch for report in optimizer.commands(ReportEpoch)] == [1.0, 2.0, 3.0, 4.0]
    assert optimizer.trials()[0].outcome is Outcome.CONVERGED


def test_a_target_reached_while_training_again_is_reported(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    state = preempted(make_bso, epochs=1, lost_epochs=2)
    bso = make_bso()
    bso.load_state_dict(state)
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
            assert trial.converged

    eventually(lambda: optimizer.trials()[0].outcome is Outcome.CONVERGED)


def test_an_exception_leaves_a_saved_training_resumable(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    bso = make_bso()
    with pytest.raises(OSError, match="node failed"):
        for trial in bso.trials():
            with trial:
                bso.state_dict()
                raise OSError("node failed")

    assert optimizer.trials()[0].state is TrialState.SUSPENDED


def test_a_trial_whose_lease_lapsed_is_resumed(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    state = preempted(make_bso)
    optimizer.let_leases_lapse()
    bso = make_bso()
    bso.load_state_dict(state)

    assert bso.get_batch_size() == 64


def test_a_trial_that_has_ended_cannot_be_resumed(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    state = preempted(make_bso)
    first = make_bso()
    first.load_state_dict(state)
    first.get_batch_size()
    first.on_train_begin()
    first.on_evaluate(0.95)

    second = make_bso()
    second.load_state_dict(state)
    with pytest.raises(CannotResume, match=r"trial 1 cannot be resumed \(.*ended as converged.*train anew"):
        second.get_batch_size()


def test_a_trial_of_another_job_cannot_be_resumed(make_bso: MakeOptimizer) -> None:
    state = preempted(make_bso)
    bso = make_bso(job_spec(job_id="other"))
    bso.load_state_dict(state)
    with pytest.raises(CannotResume, match="this state belongs to job job, not to job other"):
        bso.get_batch_size()


@pytest.mark.parametrize("is_away", [False, True], ids=["asked", "alone"])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"target_metric": 0.95}, "target_metric 0.9, now 0.95"),
        ({"version": "2"}, "version '', now '2'"),
        ({"eta_knob": 0.1, "version": "2"}, "eta_knob 1.0, now 0.1, and version '', now '2'"),
    ],
)
def test_a_trial_is_not_resumed_where_the_script_now_asks_for_something_else(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, changed: dict[str, Any], words: str, is_away: bool
) -> None:
    state = preempted(make_bso)
    optimizer.is_away = is_away
    bso = make_bso(job_spec(**changed), unreachable_timeout=0.2)
    bso.load_state_dict(state)
    with pytest.raises(CannotResume, match=rf"trial 1 cannot be resumed \(it began with {words}\): train anew"):
        bso.get_batch_size()


def test_a_trial_is_resumed_where_the_script_asks_for_more_epochs(make_bso: MakeOptimizer) -> None:
    state = preempted(make_bso)
    bso = make_bso(job_spec(max_epochs=1000, beta_knob=3.0))
    bso.load_state_dict(state)
    assert bso.get_batch_size() == 64


@pytest.mark.parametrize(
    "broken", [{}, {"format": 2}, {"format": 1, "job_id": "job"}], ids=["empty", "newer", "partial"]
)
def test_something_else_is_no_state(bso: BatchSizeOptimizer, broken: dict[str, Any]) -> None:
    with pytest.raises(CannotResume, match=r"not what state_dict\(\) gave"):
        bso.load_state_dict(broken)


def test_a_state_is_loaded_before_the_batch_size(bso: BatchSizeOptimizer) -> None:
    bso.get_batch_size()
    bso.on_train_begin()
    with pytest.raises(WrongOrder, match="load the state first"):
        bso.load_state_dict(bso.state_dict())


def test_a_resumption_out_of_reach_goes_on_and_is_reported_later(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, has_delivered: Callable[[], bool]
) -> None:
    state = preempted(make_bso)
    optimizer.is_away = True
    bso = make_bso()
    bso.load_state_dict(state)
    assert bso.get_batch_size() == 64
    bso.on_train_begin()
    bso.on_evaluate(0.2)
    optimizer.is_away = False
    eventually(has_delivered)
    assert len(optimizer.commands(ReportEpoch)) == 2
    bso.on_evaluate(0.95)

    eventually(lambda: optimizer.trials()[0].outcome is Outcome.CONVERGED)
    assert optimizer.commands(RenewLease) == []


def test_a_trial_that_was_never_registered_is_registered_when_it_is_resumed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, monitor: ScriptedMonitor
) -> None:
    first = make_bso()
    first.get_batch_size()
    first.close()
    optimizer.is_away = True
    alone = make_bso()
    alone.get_batch_size()
    alone.on_train_begin()
    state = alone.state_dict()
    alone.close(timeout=0.05)
    optimizer.is_away = False
    assert state["trial_number"] is None

    bso = make_bso()
    bso.load_state_dict(state)
    assert bso.get_batch_size() == 64
    bso.on_train_begin()
    eventually(lambda: len(optimizer.trials()) == 2)
    assert asdict(optimizer.commands(BeginTrial)[-1])["batch_size"] == 64


def test_a_trial_that_began_alone_and_has_ended_since_cannot_be_resumed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    alone = begun_alone(make_bso, optimizer)
    state = alone.state_dict()
    alone.on_evaluate(0.95)
    alone.close(timeout=0.0)
    for has_note in (True, False):  # first out of reach; then the optimizer is asked
        bso = make_bso(unreachable_timeout=0.2)
        bso.load_state_dict(state)
        with pytest.raises(CannotResume, match=r"cannot be resumed \(.*ended as converged.*train anew"):
            bso.get_batch_size()
        if has_note:
            (tmp_path / "state" / "jobs" / "job.json").unlink()
            optimizer.is_away = False
    assert [trial.outcome for trial in optimizer.trials()] == [Outcome.CANCELLED, Outcome.CONVERGED]


def test_epochs_of_a_trial_that_began_alone_are_not_reported_again(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    alone = begun_alone(make_bso, optimizer)
    state = alone.state_dict()
    alone.on_evaluate(0.2)
    alone.close(timeout=0.0)
    optimizer.is_away = False
    bso = make_bso()
    bso.load_state_dict(state)
    for trial in bso.trials():
        assert (trial.is_resumed, trial.trial_number) == (True, 2)
        with trial:
            trial.on_evaluate(0.3)
            trial.on_evaluate(0.95)
    assert [report.epoch for report in optimizer.commands(ReportEpoch)] == [1.0, 2.0]
    assert optimizer.trials()[1].outcome is Outcome.CONVERGED


@pytest.mark.parametrize("is_away", [True, False])
def test_a_state_that_was_saved_at_the_end_cannot_be_resumed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, is_away: bool
) -> None:
    bso = make_bso()
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.95)
    state = bso.state_dict()
    bso.close()
    optimizer.is_away = is_away
    bso = make_bso(unreachable_timeout=0.2)
    bso.load_state_dict(state)
    with pytest.raises(CannotResume, match=r"trial 1 cannot be resumed \(it ended as converged .*: train anew"):
        bso.get_batch_size()


def test_out_of_reach_a_state_of_another_job_cannot_be_resumed(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer
) -> None:
    state = preempted(make_bso)
    with make_bso(job_spec(job_id="other")) as known:
        known.get_batch_size()
    optimizer.is_away = True
    bso = make_bso(job_spec(job_id="other"), unreachable_timeout=0.2)
    bso.load_state_dict(state)
    with pytest.raises(CannotResume, match="this state belongs to job job, not to job other"):
        bso.get_batch_size()


def test_a_loop_resumes_the_trial_of_a_checkpoint(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    state = preempted(make_bso)
    seen = []
    for trial in make_bso().resumable_trials(state):
        seen.append((trial.is_resumed, trial.epoch))
        with trial:
            trial.on_evaluate(0.95)
    assert seen == [(True, 1.0)]
    assert [row.outcome for row in optimizer.trials()] == [Outcome.CONVERGED]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_loop_over_a_trial_that_has_ended_begins_anew(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, has_checkpoint: bool, caplog: pytest.LogCaptureFixture
) -> None:
    state = None
    for trial in make_bso().trials():
        with trial:
            state = trial.state_dict()
            trial.on_evaluate(0.95)
    seen = []
    for trial in make_bso().resumable_trials(state if has_checkpoint else None):
        seen.append(trial.is_resumed)
        with trial:
            trial.on_evaluate(0.95)
    assert seen == [False]
    assert [row.outcome for row in optimizer.trials()] == [Outcome.CONVERGED] * 2
    assert ("training begins anew" in caplog.text) is has_checkpoint
