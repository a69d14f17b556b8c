"""Strict mode decides as Zeus' server does (zeus 0.16): which batch sizes its trials get, and what its reports say."""

import random
from collections.abc import Iterator, Sequence

import pytest

from tests.integration.gateway.conftest import Gateway, StartGateway

SIZES = [32, 64, 256, 512, 1024, 4096, 2048]
JOB = {
    "batch_sizes": SIZES,
    "default_batch_size": 1024,
    "beta_knob": 2,
    "target_metric": 0.5,
    "max_epochs": 100,
    "mab_seed": 123456,
    "max_power": 3000,
    "number_of_gpus": 4,
}
JUST_ENOUGH, TOO_LITTLE = 0.55, 0.33


@pytest.fixture
def strict(start: StartGateway) -> Gateway:
    """A gateway that answers as Zeus' server, with a registered job."""
    gateway = start(zeus_strict=True)
    assert gateway.register(**JOB).status == 201
    return gateway


def converged(gateway: Gateway, trial: dict[str, int], *, time_s: float = 14.4, energy_j: float = 3000.0) -> bool:
    """Whether a training counts that has reached its target after 98 epochs."""
    answer = gateway.report(trial, 98, JUST_ENOUGH, time=time_s, energy=energy_j)
    assert (answer.status, answer.value["stop_train"]) == (200, True)
    return bool(answer.value["converged"])


def failed(gateway: Gateway, trial: dict[str, int]) -> None:
    """A training that has not reached its target after all epochs."""
    answer = gateway.report(trial, 100, TOO_LITTLE, time=14.4, energy=3000.0)
    assert (answer.status, answer.value["stop_train"], answer.value["converged"]) == (200, True, False)
    assert answer.value["message"].startswith("Train failed to converge within max_epoch")


def explored(sizes: Sequence[int], default: int, failing: frozenset[int]) -> Iterator[int]:
    """The order of a round at Zeus: from the default downwards until one fails, then upwards until one fails."""
    ascending = sorted(sizes)
    start = ascending.index(default)
    for direction in (ascending[start::-1], ascending[start + 1 :]):
        for size in direction:
            yield size
            if size in failing:
                break


@pytest.mark.parametrize("seed", range(4))
def test_rounds_of_exploration_with_a_second_trial_beside_each(strict: Gateway, seed: int) -> None:
    drawn = random.Random(seed)
    sizes, default, number = sorted(SIZES), 1024, 0
    for _ in range(2):
        failing = frozenset(size for size in sizes if size not in (512, 1024) and drawn.random() < 1 / 3)
        survived = []
        for size in explored(sizes, default, failing):
            trial, beside = strict.begin(), strict.begin()
            assert (trial["batch_size"], trial["trial_number"]) == (size, number + 1)
            assert beside["trial_number"] == number + 2, "nobody ever ends it"
            assert beside["batch_size"] == (512 if 512 in survived or default == 512 else 1024)
            number += 2
            if size in failing:
                failed(strict, trial)
            else:
                assert converged(strict, trial, time_s=12.0 if size == 512 else 14.4)
                survived.append(size)
        sizes, default = survived, 512
    left = {strict.begin()["batch_size"] for _ in range(20)}
    assert left <= set(sizes), "the bandit has what survived"


def test_a_default_that_fails_is_followed_by_larger_batch_sizes(strict: Gateway) -> None:
    failed(strict, strict.begin())
    assert strict.begin()["batch_size"] == 2048


def test_a_batch_size_that_is_stopped_at_the_bound_is_not_explored_further(strict: Gateway) -> None:
    assert converged(strict, strict.begin())
    trial = strict.begin()
    assert trial["batch_size"] == 512
    assert strict.report(trial, 1, TOO_LITTLE, time=14.4, energy=3000.0).value["stop_train"] is False
    stopped = strict.report(trial, 2, TOO_LITTLE, time=30.0, energy=6000.0).value
    assert (stopped["stop_train"], stopped["converged"]) == (True, False)
    assert stopped["message"].startswith("Batch Size(512) exceeded the cost upper bound")
    for _ in range(3):  # the other ranks
        other = strict.report(trial, 2, TOO_LITTLE, time=30.0, energy=6000.0).value
        assert (other["stop_train"], other["converged"]) == (True, False)
        assert other["message"].endswith("is already reported.")
    assert strict.begin()["batch_size"] == 2048


def test_a_second_trial_has_the_default_before_any_result(strict: Gateway) -> None:
    assert [strict.begin() for _ in range(2)] == [
        {"job_id": strict.job_id, "batch_size": 1024, "trial_number": number} for number in (1, 2)
    ]


def test_a_target_reached_above_the_bound_does_not_count(strict: Gateway) -> None:
    assert converged(strict, strict.begin())
    assert not converged(strict, strict.begin(), time_s=30.0, energy_j=6000.0)


def test_the_bandit_goes_on_however_many_trials_nobody_ends(strict: Gateway) -> None:
    chosen = []
    for _ in range(50):
        trial, _ = strict.begin(), strict.begin()
        assert converged(strict, trial, time_s=15.1)
        chosen.append(trial["batch_size"])
    assert chosen[:7] == [1024, 512, 256, 64, 32, 2048, 4096]
    assert sorted(chosen[7:14]) == sorted(SIZES), "the second round explores what survived the first"
    assert set(chosen[14:]) <= set(SIZES)


def test_a_trial_that_ended_without_a_report_is_followed_by_another(strict: Gateway) -> None:
    trial = strict.begin()
    assert strict.end(trial).status == 200
    trial = strict.begin()
    assert converged(strict, trial)
    assert strict.end(trial).status == 200
