"""Which recurrence a trial serves."""

import pytest

from bso.domain.commands import BeginTrial
from bso.domain.decide.begin import MAX_ACTIVE_TRIALS, MAX_OPEN_RECURRENCES
from bso.domain.trial import Outcome, TrialState
from bso.schema.codec import state_of
from tests.unit.domain.builders import A100, JobLife, problem_of


def job() -> JobLife:
    life = JobLife()
    life.register()
    return life


def test_without_a_recurrence_id_a_trial_joins_the_oldest_open_one_without_a_running_trial() -> None:
    life = job()
    first, second = life.begin("a"), life.begin("b")
    life.give_up(second)
    life.give_up(first)
    assert life.begin().recurrence_id == "a"
    assert life.begin().recurrence_id == "b"
    assert life.begin().recurrence_id == "recurrence-3"


def test_a_recurrence_with_a_suspended_trial_may_be_joined() -> None:
    life = job()
    life.lapse(life.begin("a"))
    assert life.begin().recurrence_id == "a"


def test_a_name_that_a_user_has_given_away_is_not_taken_twice() -> None:
    life = job()
    life.begin("recurrence-2")
    assert life.begin().recurrence_id == "recurrence-2+"
    assert len({life.begin().recurrence_id for _ in range(3)}) == 3


def test_a_recurrence_ends_with_a_converged_trial() -> None:
    life = job()
    assert not life.converge(life.begin("a"), 1.0).should_retry
    assert life.job is not None
    assert life.job.recurrences == {}


def test_abandoned_recurrences_do_not_pile_up() -> None:
    life = job()
    sleeping = life.begin("sleeping")
    life.lapse(sleeping)
    for number in range(MAX_OPEN_RECURRENCES + 20):
        life.finish(life.begin(f"idle-{number}"), Outcome.INTERRUPTED)
    assert life.job is not None
    assert len(life.job.recurrences) == MAX_OPEN_RECURRENCES
    assert "sleeping" in life.job.recurrences, "one that may wake up is closed last"


def test_recurrences_whose_trials_all_sleep_do_not_pile_up_either() -> None:
    life = job()
    for number in range(MAX_OPEN_RECURRENCES + 5):
        life.lapse(life.begin(f"sleeping-{number}"))
    assert life.job is not None
    assert len(life.job.recurrences) == MAX_OPEN_RECURRENCES


def test_trials_that_are_killed_again_and_again_do_not_pile_up() -> None:
    life = job()
    killed = [life.begin("a") for _ in range(MAX_ACTIVE_TRIALS)]
    for trial in killed[1:]:
        life.lapse(trial)
    life.begin("a")
    life.begin("b")
    assert life.job is not None
    assert len(life.job.active_trials()) == MAX_ACTIVE_TRIALS
    running, *given_up, spared = (life.row(trial) for trial in killed[:4])
    assert running.state is TrialState.RUNNING
    assert spared.state is TrialState.SUSPENDED
    assert [(row.outcome, row.may_report_late) for row in given_up] == [(Outcome.INTERRUPTED, True)] * 2
    life.converge(killed[1], 7.0)
    assert life.row(killed[1]).late_outcome is Outcome.CONVERGED


def test_running_trials_are_never_given_up_for_a_new_one() -> None:
    life = job()
    for _ in range(MAX_ACTIVE_TRIALS + 2):
        life.begin("a")
    assert life.job is not None
    assert len(life.job.active_trials()) == MAX_ACTIVE_TRIALS + 2


@pytest.mark.parametrize("trials", [1000, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("window_size", [0, 5])
def test_the_stored_state_stays_small_over_many_trials(window_size: int, trials: int) -> None:
    life = JobLife()
    life.register(window_size=window_size)
    sizes = []
    for number in range(trials):
        trial = life.begin(f"r{number}", batch_size=None if number % 7 else 1000 + number)
        if number % 3 == 0:
            life.finish(trial, Outcome.INTERRUPTED)
        elif number % 3 == 1:
            life.converge(trial, 10.0 + trial.batch_size % 5)
        if number % 250 == 249 and number >= 499:
            assert life.job is not None
            sizes.append(len(state_of(life.job)))
        if number % 3 == 2:
            life.give_up(trial)
    assert max(sizes) < 40_000
    assert sizes[-1] < sizes[0] * 1.2


@pytest.mark.parametrize(
    "name", ["a/b", "with space", "🚀", "it's", '"quoted"', "x" * 121, "", "-a", "ünï", "a\n", "a\x00", ".a"]
)
def test_a_bad_recurrence_id_is_refused(name: str) -> None:
    problem = problem_of(job().send(BeginTrial(hardware=A100, recurrence_id=name)))
    assert set(problem.fields) == {"recurrence_id"}
