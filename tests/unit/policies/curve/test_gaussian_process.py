"""The posterior against the textbook's formula in numpy."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.policies.curve.gaussian_process import Observations, Posterior, Prior, Related
from bso.policies.curve.hypotheses import COST_ELSEWHERE, EPOCHS_CHANGE, EPOCHS_PRIOR
from tests.unit.domain.builders import searching

places = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=7, unique=True).map(tuple)


@searching(40)
@given(places=places, data=st.data())
def test_the_posterior_is_that_of_the_textbook(places: tuple[float, ...], data: st.DataObject) -> None:
    indices = st.integers(0, len(places) - 1)
    numbers = st.tuples(st.floats(-2, 6), st.floats(0.01, 2.0))
    observed = data.draw(st.dictionaries(indices, numbers, max_size=5))
    prior = replace(EPOCHS_PRIOR, own_variance=data.draw(st.sampled_from([0.0, 0.02])))
    found = Posterior(prior, places, Observations.of(observed))
    means, covariances = textbook(prior, np.array(places), observed)
    np.testing.assert_allclose(found.means, [means], atol=1e-6)
    np.testing.assert_allclose(found.variances, [np.diag(covariances)], atol=1e-6)
    np.testing.assert_allclose(covariances_of(found, len(places)), covariances, atol=1e-6)


@searching(40)
@given(places=places, data=st.data())
def test_what_is_related_is_of_the_sum_of_two_processes(places: tuple[float, ...], data: st.DataObject) -> None:
    """By the textbook, with the values before a change, and those elsewhere, as places of their own."""
    n = len(places)
    observations = st.dictionaries(st.integers(0, n - 1), st.tuples(st.floats(-2, 6), st.floats(0.01, 2.0)), max_size=5)
    observed, before, there = data.draw(observations), data.draw(observations), data.draw(observations)
    related = [
        Related(observed=Observations.of(before), change=EPOCHS_CHANGE),
        Related(observed=Observations.of(there), change=COST_ELSEWHERE),
    ]
    found = Posterior(EPOCHS_PRIOR, places, Observations.of(observed), related)
    own, change, other = (kernel_of(prior, places) for prior in (EPOCHS_PRIOR, EPOCHS_CHANGE, COST_ELSEWHERE))
    mean = [EPOCHS_PRIOR.level + EPOCHS_PRIOR.slope * x for x in places]
    every = {**observed, **{i + n: one for i, one in before.items()}, **{i + 2 * n: one for i, one in there.items()}}
    kernel = np.block([[own, own, own], [own, own + change, own], [own, own, own + other]])
    means, covariances = conditioned(np.array(3 * mean), kernel, every)
    np.testing.assert_allclose(found.means, [means[:n]], atol=1e-5)
    np.testing.assert_allclose(covariances_of(found, n), covariances[:n, :n], atol=1e-5)


@searching(40)
@given(places=places, data=st.data())
def test_hypotheses_together_are_what_each_is_alone(places: tuple[float, ...], data: st.DataObject) -> None:
    """Each has its own variance of what places have for themselves, and its own noise of what was seen."""
    n = len(places)
    at = data.draw(st.lists(st.integers(0, n - 1), max_size=5, unique=True))
    values = data.draw(st.lists(st.floats(-2, 6), min_size=len(at), max_size=len(at)))
    owns, noises = (0.0, 0.02, 0.5), (0.01, 0.3, 2.0)
    seen = Observations(
        at=np.array(at, dtype=np.intp), values=np.array(values), noises=np.array(noises)[:, None] * np.ones(len(at))
    )
    before = Related(observed=seen, change=EPOCHS_CHANGE)
    together = Posterior(EPOCHS_PRIOR, places, seen, [before], own_variances=np.array(owns))
    for row, (own, noise) in enumerate(zip(owns, noises, strict=True)):
        one = Observations.of({i: (value, noise) for i, value in zip(at, values, strict=True)})
        related = Related(observed=one, change=EPOCHS_CHANGE)
        alone = Posterior(replace(EPOCHS_PRIOR, own_variance=own), places, one, [related])
        np.testing.assert_allclose(together.means[row], alone.means[0], atol=1e-9)
        np.testing.assert_allclose(together.variances[row], alone.variances[0], atol=1e-9)
        np.testing.assert_allclose(together.covariances(0)[row], alone.covariances(0)[0], atol=1e-9)
        np.testing.assert_allclose(together.log_evidence[row], alone.log_evidence[0], atol=1e-9)


@searching(40)
@given(places=places, data=st.data())
def test_the_evidence_is_the_density_of_what_was_observed(places: tuple[float, ...], data: st.DataObject) -> None:
    indices = st.integers(0, len(places) - 1)
    numbers = st.tuples(st.floats(-2, 6), st.floats(0.01, 2.0))
    observed = data.draw(st.dictionaries(indices, numbers, min_size=1, max_size=5))
    prior = replace(EPOCHS_PRIOR, own_variance=data.draw(st.sampled_from([0.0, 0.02, 0.5])))
    seen = sorted(observed)
    kernel = kernel_of(prior, [places[i] for i in seen])
    spread = kernel + np.diag([observed[i][1] for i in seen])
    off = np.array([observed[i][0] - (prior.level + prior.slope * places[i]) for i in seen])
    density = -0.5 * off @ np.linalg.inv(spread) @ off - 0.5 * np.linalg.slogdet(spread)[1]
    np.testing.assert_allclose(Posterior(prior, places, Observations.of(observed)).log_evidence, [density], atol=1e-6)


def textbook(
    prior: Prior, places: np.ndarray, observed: dict[int, tuple[float, float]]
) -> tuple[np.ndarray, np.ndarray]:
    return conditioned(prior.level + prior.slope * places, kernel_of(prior, places), observed)


def kernel_of(prior: Prior, places: Sequence[float] | np.ndarray) -> np.ndarray:
    def covariance(x: float, y: float) -> float:
        smooth = prior.curve_variance * math.exp(-0.5 * ((x - y) / prior.length_scale) ** 2)
        own = prior.own_variance if x == y else 0.0
        return prior.level_variance + prior.slope_variance * x * y + smooth + own

    return np.array([[covariance(x, y) for y in places] for x in places])


def covariances_of(found: Posterior, count: int) -> np.ndarray:
    return np.array([found.covariances(i)[0] for i in range(count)])


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
    excess, variances = Posterior(EPOCHS_PRIOR, at, Observations.of(observed)).left_out()
    for number, (i, (value, noise)) in enumerate(observed.items()):
        left = Observations.of({j: one for j, one in observed.items() if j != i})
        others = Posterior(EPOCHS_PRIOR, at, left)
        assert excess[0, number] == pytest.approx(value - others.means[0, i], abs=1e-6)
        assert variances[0, number] == pytest.approx(others.variances[0, i] + noise, abs=1e-6)
