"""Epoch costs that a training probes, on their way to the optimizer."""

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from bso.domain.commands import ReportEpochCosts
from bso.domain.trial import Profiled
from bso_client import InvalidSetting, JobSpec, Trial
from bso_client.prober import Prober
from tests.unit.client.doubles import ReachableOptimizer, job_spec
from tests.unit.client.fixtures import MakeOptimizer

EPOCHS, EPOCH_S = 12, 0.1
"""Half of that time is enough for steps of three milliseconds at most."""


def spec(**fields: Any) -> JobSpec:
    return job_spec(**{"max_epochs": 100, "probing_budget": 0.5, **fields})


class Steps:
    """The clock of probes: a step takes what it should, however busy the machine is."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def step(self, batch_size: int) -> None:
        self.now_s += batch_size * 2e-5


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    steps = Steps()
    monkeypatch.setattr("bso_client.session.Prober", functools.partial(Prober, clock=steps))
    return steps


@pytest.fixture
def step(steps: Steps) -> Callable[[int], None]:
    return steps.step


def train(trial: Trial, step: Callable[[int], object]) -> None:
    for _ in range(EPOCHS):
        time.sleep(EPOCH_S)
        trial.on_evaluate(0.1)
        trial.probe_epoch_costs(step)
    trial.on_evaluate(0.95)
    trial.probe_epoch_costs(step)


def test_what_is_wanted_is_probed_and_reported(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, step: Callable[[int], None]
) -> None:
    for trial in make_bso(spec()).trials():
        with trial:
            train(trial, step)
    sent = optimizer.commands(ReportEpochCosts)
    assert {each.batch_size for command in sent for each in command.probes} == {32, 64, 128}
    assert all(command.time_s > 0.0 for command in sent)
    [recorded] = optimizer.trials()
    assert recorded.profiled == Profiled(), "the meter does not run meanwhile"
    assert "EpochCostsProbed" in optimizer.event_types()


def test_the_next_training_is_not_asked_again(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, step: Callable[[int], None]
) -> None:
    bso = make_bso(spec())
    for _ in range(2):
        for trial in bso.trials():
            with trial:
                train(trial, step)
    assert {command.trial_number for command in optimizer.commands(ReportEpochCosts)} == {1}


def never(_batch_size: int) -> None:
    raise AssertionError("a step was made")


def test_nothing_is_probed_without_a_budget(make_bso: MakeOptimizer, optimizer: ReachableOptimizer) -> None:
    for trial in make_bso(spec(probing_budget=0.0)).trials():
        with trial:
            train(trial, never)
    assert optimizer.commands(ReportEpochCosts) == []


def test_nothing_is_probed_where_the_environment_says_so(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BSO_PROBING", "off")
    for trial in make_bso(spec()).trials():
        with trial:
            train(trial, never)
    assert optimizer.commands(ReportEpochCosts) == []


def test_the_variable_says_on_or_off(make_bso: MakeOptimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BSO_PROBING", "maybe")
    with pytest.raises(InvalidSetting, match="BSO_PROBING must be on or off, got 'maybe'"):
        make_bso(job_spec())


def test_before_the_first_report_nothing_is_probed(make_bso: MakeOptimizer) -> None:
    for trial in make_bso(spec()).trials():
        with trial:
            trial.probe_epoch_costs(never)
            trial.on_evaluate(0.95)


def test_no_training_is_lost_to_a_step_that_fails(make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture) -> None:
    def failing(_batch_size: int) -> None:
        raise ZeroDivisionError("somebody's own")

    for trial in make_bso(spec()).trials():
        with trial:
            train(trial, failing)
        assert trial.converged
    assert caplog.text.count("ZeroDivisionError") == 1


def test_while_the_optimizer_is_away_they_are_kept(
    make_bso: MakeOptimizer,
    optimizer: ReachableOptimizer,
    has_delivered: Callable[[], bool],
    step: Callable[[int], None],
) -> None:
    bso = make_bso(spec())
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            optimizer.is_away = True
            for _ in range(EPOCHS):
                time.sleep(EPOCH_S)
                trial.on_evaluate(0.2)
                trial.probe_epoch_costs(step)
            trial.on_evaluate(0.95)
    assert optimizer.commands(ReportEpochCosts) == []
    optimizer.is_away = False
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.95)
    bso.close()
    assert {command.trial_number for command in optimizer.commands(ReportEpochCosts)} == {1}


def test_an_end_says_what_probing_took(
    make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture, step: Callable[[int], None]
) -> None:
    caplog.set_level("INFO", logger="bso")
    for trial in make_bso(spec()).trials():
        with trial:
            train(trial, step)
    assert "; probing epoch costs took " in caplog.text


def test_what_was_probed_is_reported_at_once(
    make_bso: MakeOptimizer, optimizer: ReachableOptimizer, step: Callable[[int], None]
) -> None:
    for trial in make_bso(spec()).trials():
        with trial:
            time.sleep(EPOCH_S)
            trial.on_evaluate(0.1)
            trial.probe_epoch_costs(step)
            while not optimizer.commands(ReportEpochCosts):
                time.sleep(0.01)
            [sent] = optimizer.commands(ReportEpochCosts)
            assert sent.probes
            trial.on_evaluate(0.95)
    assert len(optimizer.commands(ReportEpochCosts)) == 1
