"""The posterior against the textbook's formula in numpy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.curve.cost_beliefs import COST_ELSEWHERE
from bso.domain.curve.epoch_priors import EPOCHS_CHANGE, EPOCHS_PRIOR
from bso.domain.curve.gaussian_process import Posterior, Prior, Related
from tests.unit.domain.builders import searching

places = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=7, unique=True).map(tuple)


@searching(40)
@given(places=places, data=st.data())
def test_the_posterior_is_that_of_the_textbook(places: tuple[float, ...], data: st.DataObject) -> None:
    indices = st.integers(0, len(places) - 1)
    numbers = st.tuples(st.floats(-2, 6), st.floats(0.01, 2.0))
    observed = data.draw(st.dictionaries(indices, numbers, max_size=5))
    prior = replace(EPOCHS_PRIOR, own_variance=data.draw(st.sampled_from([0.0, 0.02])))
    found = Posterior(prior, places, observed)
    means, covariances = textbook(prior, np.array(places), observed)
    np.testing.assert_allclose(found.means, means, atol=1e-6)
    np.testing.assert_allclose([found.variance(i) for i in range(len(places))], np.diag(covariances), atol=1e-6)
    for i in range(len(places)):
        for j in range(len(places)):
            assert abs(found.covariance(i, j) - covariances[i, j]) < 1e-6


@searching(40)
@given(places=places, data=st.data())
def test_what_is_related_is_of_the_sum_of_two_processes(places: tuple[float, ...], data: st.DataObject) -> None:
    """By the textbook, with the values before a change, and those elsewhere, as places of their own."""
    n = len(places)
    observations = st.dictionaries(st.integers(0, n - 1), st.tuples(st.floats(-2, 6), st.floats(0.01, 2.0)), max_size=5)
    observed, before, there = data.draw(observations), data.draw(observations), data.draw(observations)
    related = [Related(observed=before, change=EPOCHS_CHANGE), Related(observed=there, change=COST_ELSEWHERE)]
    found = Posterior(EPOCHS_PRIOR, places, observed, related)
    own = np.array([[EPOCHS_PRIOR.covariance(x, y) for y in places] for x in places])
    change = np.array([[EPOCHS_CHANGE.covariance(x, y) for y in places] for x in places])
    other = np.array([[COST_ELSEWHERE.covariance(x, y) for y in places] for x in places])
    mean = [EPOCHS_PRIOR.mean(x) for x in places]
    every = {**observed, **{i + n: one for i, one in before.items()}, **{i + 2 * n: one for i, one in there.items()}}
    kernel = np.block([[own, own, own], [own, own + change, own], [own, own, own + other]])
    means, covariances = conditioned(np.array(3 * mean), kernel, every)
    np.testing.assert_allclose(found.means, means[:n], atol=1e-5)
    got = [[found.covariance(i, j) for j in range(n)] for i in range(n)]
    np.testing.assert_allclose(got, covariances[:n, :n], atol=1e-5)


@searching(40)
@given(places=places, data=st.data())
def test_the_evidence_is_the_density_of_what_was_observed(places: tuple[float, ...], data: st.DataObject) -> None:
    indices = st.integers(0, len(places) - 1)
    numbers = st.tuples(st.floats(-2, 6), st.floats(0.01, 2.0))
    observed = data.draw(st.dictionaries(indices, numbers, min_size=1, max_size=5))
    prior = replace(EPOCHS_PRIOR, own_variance=data.draw(st.sampled_from([0.0, 0.02, 0.5])))
    seen = sorted(observed)
    kernel = np.array([[prior.covariance(places[i], places[j]) for j in seen] for i in seen])
    spread = kernel + np.diag([observed[i][1] for i in seen])
    off = np.array([observed[i][0] - prior.mean(places[i]) for i in seen])
    density = -0.5 * off @ np.linalg.inv(spread) @ off - 0.5 * np.linalg.slogdet(spread)[1]
    np.testing.assert_allclose(Posterior(prior, places, observed).log_evidence, density, atol=1e-6)


def textbook(
    prior: Prior, places: np.ndarray, observed: dict[int, tuple[float, float]]
) -> tuple[np.ndarray, np.ndarray]:
    kernel = np.array([[prior.covariance(x, y) for y in places] for x in places])
    return conditioned(np.array([prior.mean(x) for x in places]), kernel, observed)


def conditioned(
    mean: np.ndarray, kernel: np.ndarray, observed: dict[int, tuple[float, float]]
) -> tuple[np.ndarray, np.ndarray]:
    seen = sorted(observed)
    if not seen:
        return mean, kernel
    noise = np.diag([observed[i][1] for i in seen])
    gain = kernel[:, seen] @ np.linalg.inv(kernel[np.ix_(seen, seen)] + noise)
    return mean + gain @ (np.array([observed[i][0] for i in seen]) - mean[seen]), kernel - gain @ kernel[seen, :]


def test_each_observation_is_compared_with_what_all_others_say() -> None:
    observed, at = {0: (1.0, 0.1), 2: (1.4, 0.2), 3: (3.0, 0.1)}, (-1.0, 0.0, 1.0, 2.0)
    found = {i: (excess, variance) for i, excess, variance in Posterior(EPOCHS_PRIOR, at, observed).left_out()}
    assert found.keys() == observed.keys()
    for i, (value, noise) in observed.items():
        others = Posterior(EPOCHS_PRIOR, at, {j: one for j, one in observed.items() if j != i})
        excess, variance = found[i]
        assert excess == pytest.approx(value - others.means[i], abs=1e-6)
        assert variance == pytest.approx(others.variance(i) + noise, abs=1e-6)
