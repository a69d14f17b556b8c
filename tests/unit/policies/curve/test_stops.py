"""When a trial is stopped early."""

import math
import random
from dataclasses import replace
from statistics import mode

import pytest

from bso.domain.trial import Outcome
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.memory import epoch_costs_on, epochs_of
from bso.policies.curve.stops import Underway, why_to_stop
from tests.unit.policies.curve.invented_trainings import EPOCHS, PRICES, Trainings


def test_an_exploration_whose_epochs_turn_out_dear_is_stopped_after_the_first() -> None:
    trainings = Trainings(prices={**PRICES, 128: 100.0}).register(default_batch_size=64)
    trainings.chosen(range(25))
    [stopped, *_] = [row for row in trainings.life.rows.values() if row.batch_size == 128]
    assert (stopped.outcome, stopped.epoch) == (Outcome.COST_EXCEEDED, 1.0)
    assert stopped.bound is not None
    assert stopped.cost < 0.5 * stopped.bound
    assert "64 is cheaper" in stopped.outcome_reason


@pytest.mark.parametrize(
    ("epochs", "max_epochs", "words"),
    [(30.0, 31, "is unlikely to converge within 31 epochs"), (300.0, 10**6, "takes far longer than expected")],
)
def test_what_is_long_overdue_is_stopped(epochs: float, max_epochs: int, words: str) -> None:
    trainings = Trainings(noise=0.1).register(max_epochs=max_epochs)
    trainings.chosen(range(40))
    assert trainings.life.job is not None
    version = trainings.life.job.version
    beliefs = Beliefs(version.spec, epochs_of(version), epoch_costs_on(trainings.life.known()))
    compared = beliefs.compared(64, 128)
    late = Underway(
        epochs=epochs,
        interval=1.0,
        cost=epochs * PRICES[64],
        epoch_cost=math.log(PRICES[64]),
        usual_cost=math.log(PRICES[64]),
        max_epochs=max_epochs,
        is_second_look=False,
    )
    assert words in str(why_to_stop(compared, late, recurrences=40, rise=0.0))
    assert why_to_stop(compared, replace(late, is_second_look=True), recurrences=40, rise=0.0) is None


def test_the_incumbent_may_cost_twice_its_expectation() -> None:
    trainings = Trainings().register()
    trainings.chosen(range(30))
    trial = trainings.life.begin("again")
    expected = EPOCHS[trial.batch_size] * PRICES[trial.batch_size]
    assert trial.bound == pytest.approx(2 * expected, rel=0.2)


def test_without_early_stopping_nothing_is_stopped() -> None:
    trainings = Trainings(epochs={**EPOCHS, 512: 99}).register(early_stopping=False)
    trainings.chosen(range(20))
    assert set(trainings.outcomes()) == {Outcome.CONVERGED}


def test_without_beta_only_max_epochs_ends_a_trial() -> None:
    trainings = Trainings(epochs={**EPOCHS, 512: None}).register(beta_knob=None, max_epochs=60, default_batch_size=512)
    trainings.chosen(range(20))
    assert Outcome.COST_EXCEEDED not in trainings.outcomes()
    assert trainings.outcomes()[0] is Outcome.NOT_CONVERGED


def test_the_cost_budget_bounds_what_has_no_other_bound() -> None:
    trainings = Trainings(epochs={**EPOCHS, 256: None}).register(cost_budget=100.0)
    first = trainings.life.begin("r0")
    assert first.bound == 100.0
    noted = trainings.train(first)
    assert noted.outcome is Outcome.COST_EXCEEDED
    assert trainings.life.row(first).epoch == 16


def test_the_last_attempt_runs_to_its_end() -> None:
    trainings = Trainings().register(max_attempts=2)
    trainings.chosen(range(10))
    trainings.epochs = {size: 3 * epochs for size, epochs in EPOCHS.items()}
    trials = trainings.recur(10)
    assert trainings.life.row(trials[-1]).outcome is Outcome.CONVERGED
    assert len(trials) == 1 or trials[-1].bound is None


def test_an_expensive_run_goes_on_above_its_bound_where_that_costs_less_than_a_fresh_one() -> None:
    draw, trainings = random.Random(7), Trainings().register(default_batch_size=128)
    models: list[int] = []
    for number, factor in enumerate([*(draw.gauss(0.0, 0.4) for _ in range(40)), math.log(2.7)]):
        trainings.prices = {size: math.exp(factor) * price for size, price in PRICES.items()}
        if number < 40:
            models.append(trainings.recur(number)[-1].batch_size)
    incumbent = mode(models[-10:])
    trial = trainings.life.begin("expensive", batch_size=incumbent)
    assert trial.bound is not None
    ended = trainings.train(trial)
    assert ended.outcome is Outcome.CONVERGED
    assert ended.cost > trial.bound
