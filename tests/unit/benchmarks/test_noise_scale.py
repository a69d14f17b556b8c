"""The noise scale is found again in gradients whose own is known, and gives the slopes of the paper's model."""

import math

import numpy as np
import pytest

from tests.benchmarks.first_run.noise_scale import (
    SquaredNorms,
    best_scale,
    fitted_slope,
    noise_scale,
    predicted,
    slopes,
)

SIZES = (16, 32, 64, 128, 256)
WEIGHTS = 400


def norms(random: np.random.Generator, *, scale: float, small_batch: int, count: int) -> SquaredNorms:
    """Of ``count`` gradients: a true one of norm 1, and noise of variance ``scale`` in an example, unequally spread."""
    true = random.standard_normal(WEIGHTS)
    true /= np.linalg.norm(true)
    spread = random.exponential(size=WEIGHTS)
    deviations = np.sqrt(scale * spread / spread.sum() / small_batch)
    gradients = true + deviations * random.standard_normal((count, WEIGHTS))
    return SquaredNorms(
        small_batch=small_batch,
        small=float((gradients**2).sum(axis=1).mean()),
        large_batch=count * small_batch,
        large=float((gradients.mean(axis=0) ** 2).sum()),
    )


@pytest.mark.parametrize("scale", [8.0, 100.0, 1500.0])
def test_the_noise_scale_of_made_gradients_is_found_again(scale: float) -> None:
    random = np.random.default_rng(1)
    found = [norms(random, scale=scale, small_batch=64, count=8) for _ in range(8)]
    assert noise_scale(found) == pytest.approx(scale, rel=0.15)


def test_the_estimate_of_each_part_is_unbiased_where_noise_hides_the_gradient() -> None:
    """At a noise scale of 4 000 the mean of eight batches of 16 has a squared norm of 32, and the true one is 1."""
    random = np.random.default_rng(2)
    found = [norms(random, scale=4000.0, small_batch=16, count=8) for _ in range(400)]
    assert np.mean([one.signal for one in found]) == pytest.approx(1.0, abs=0.6)  # three standard errors
    assert np.mean([one.noise for one in found]) == pytest.approx(4000.0, rel=0.02)


def test_noise_alone_has_an_infinite_scale_and_equal_gradients_have_none() -> None:
    hidden = SquaredNorms(small_batch=16, small=2.0, large_batch=128, large=0.2)
    assert noise_scale([hidden]) == math.inf
    assert slopes(predicted(SIZES, math.inf)) == [0.0] * 4
    equal = SquaredNorms(small_batch=16, small=1.0, large_batch=128, large=1.0)
    assert noise_scale([equal]) == 0.0
    assert slopes(predicted(SIZES, 0.0)) == pytest.approx([math.log(2.0)] * 4)


def test_slopes_are_those_of_one_plus_batch_size_over_noise_scale() -> None:
    expected = [math.log((1 + 2 * size / 100) / (1 + size / 100)) for size in SIZES[:-1]]
    assert slopes(predicted(SIZES, 100.0)) == pytest.approx(expected)


def test_the_best_scale_in_hindsight_is_that_of_the_epochs() -> None:
    assert best_scale(predicted(SIZES, 128.0)) == pytest.approx(128.0)


def test_a_missing_batch_size_leaves_a_wider_step_whose_slope_is_per_octave() -> None:
    assert slopes({16: 0.0, 64: 1.0, 128: 1.5}) == [0.5, 0.5]
    assert fitted_slope({16: 0.0, 64: 1.0, 128: 1.5}) == pytest.approx(0.5)
