from pathlib import Path

import pytest

from bso.domain.trial import Outcome, TrialState
from tests.training.distributed.torchrun import launch


@pytest.mark.parametrize("victim", [0, 1], ids=["rank 0", "rank 1"])
def test_a_killed_rank_interrupts_the_trial_and_hangs_nobody(tmp_path: Path, victim: int) -> None:
    done = launch("dying", tmp_path, victim, "none", processes=2)
    assert done.codes == (1,), done.printed

    [trial] = done.trials()
    assert (trial.state, trial.outcome, trial.reports) == (TrialState.ENDED, Outcome.INTERRUPTED, 2)
    assert victim != 0 or "the process of rank 0 has died" in trial.outcome_reason


@pytest.mark.parametrize("victim", [0, 1], ids=["rank 0", "rank 1"])
def test_an_error_of_one_rank_while_another_waits_for_it_is_the_reason_that_is_recorded(
    tmp_path: Path, victim: int
) -> None:
    done = launch("dying", tmp_path, victim, "raises", processes=2)
    assert done.codes == (1,), done.printed

    [trial] = done.trials()
    assert (trial.state, trial.outcome, trial.reports) == (TrialState.ENDED, Outcome.INTERRUPTED, 2)
    assert trial.outcome_reason == f"ValueError: a bug on one rank (on rank {victim})"


@pytest.mark.parametrize("victim", [0, 1], ids=["rank 0", "rank 1"])
def test_an_elastic_restart_resumes_the_trial_of_a_checkpoint(tmp_path: Path, victim: int) -> None:
    done = launch("dying", tmp_path, victim, "checkpoint", processes=2, max_restarts=1)
    assert done.codes == (0,), done.printed

    [trial] = done.trials()
    assert (trial.outcome, trial.epoch) == (Outcome.CONVERGED, 4.0)
    assert trial.energy_j is not None
    # two ranks of 10 J: one window for each of four epochs, and one that state_dict closes after each but the last
    assert trial.energy_j >= 2 * 10.0 * 4
    assert done.same("launch") == [0, 1]
    assert done.same("number") == [1, 1]
    assert done.same("epoch") == [0.0, 2.0]


def test_an_elastic_restart_without_a_checkpoint_begins_another_trial_of_the_recurrence(tmp_path: Path) -> None:
    done = launch("dying", tmp_path, 1, "none", processes=2, max_restarts=1)
    assert done.codes == (0,), done.printed

    assert [trial.outcome for trial in done.trials()] == [Outcome.INTERRUPTED, Outcome.CONVERGED]
    assert done.same("recurrence") == ["torchrun-night-1", "torchrun-night-1"]
