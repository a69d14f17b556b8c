"""The distributions against their definitions, integrated by numpy."""

import numpy as np
import pytest

from bso.policies.curve import normal


def drawn(mean: float, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    z = np.linspace(-10, 10, 200_001)
    return mean + deviation * z, np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)


@pytest.mark.parametrize("mean", [-2.0, -0.1, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("deviation", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("least", [0.0, 0.02, 0.3])
def test_an_expected_saving_is_the_mean_of_what_is_saved(mean: float, deviation: float, least: float) -> None:
    x, density = drawn(mean, deviation)
    saved = 1.0 - np.exp(x)
    exact = np.trapezoid(np.where(saved >= least, np.maximum(0.0, saved), 0.0) * density, dx=1e-4)
    assert normal.expected_saving(mean, deviation, least) == pytest.approx(exact, rel=1e-3, abs=2e-5)


def test_without_uncertainty_the_saving_is_plain() -> None:
    assert normal.expected_saving(np.log(0.75), 0.0) == pytest.approx(0.25)
    assert normal.expected_saving(0.1, 0.0) == 0.0
    assert normal.expected_saving(np.log(0.99), 0.0, least=0.02) == 0.0


@pytest.mark.parametrize(("least", "most"), [(1.0, 100.0), (20.0, 100.0), (90.0, 100.0), (5.0, 6.0)])
def test_a_truncated_mean_is_that_of_what_is_left(least: float, most: float) -> None:
    x, density = drawn(np.log(18.0), 0.4)
    value, is_left = np.exp(x), np.exp(x) > least
    exact = np.sum((np.minimum(value, most) * density)[is_left]) / np.sum(density[is_left])
    assert normal.truncated_mean(np.log(18.0), 0.4, least, most) == pytest.approx(exact, rel=1e-3)


def test_the_far_tail_is_exact() -> None:
    assert normal.above(10.0) == pytest.approx(7.619853e-24, rel=1e-6)
    assert normal.below(1.0) + normal.above(1.0) == pytest.approx(1.0)
    assert normal.exp(1e6) < float("inf")
