"""Random numbers are a function of seed, trial and draw, the same everywhere."""

from itertools import pairwise
from statistics import fmean, pstdev

import pytest

from bso.domain.randomness import seed_from, standard_normal, uniform

KNOWN = {
    (0, 0, 0): 0.08234954794796845,
    (1, 1, 64): 0.0603095261981913,
    (7, 12, 256): 0.5264064557729179,
    (2**63 - 1, 10**6, 2**31 - 1): 0.9607954921189529,
}
KNOWN_NORMALS = {(0, 0, 0): -1.3894396648475797, (1, 1, 64): -1.5521804506374068, (7, 12, 256): 0.06623957650315562}


@pytest.mark.parametrize(("counter", "number"), KNOWN.items(), ids=repr)
def test_known_answers(counter: tuple[int, int, int], number: float) -> None:
    assert uniform(*counter) == number


@pytest.mark.parametrize(("counter", "number"), KNOWN_NORMALS.items(), ids=repr)
def test_known_normals(counter: tuple[int, int, int], number: float) -> None:
    assert standard_normal(*counter) == pytest.approx(number, rel=1e-14)


def test_a_known_seed() -> None:
    assert seed_from("3f0c8a52-0000-7000-8000-000000000001") == 52389592


def test_numbers_are_uniform_and_independent_of_their_neighbours() -> None:
    numbers = [uniform(3, trial, draw) for trial in range(1000) for draw in (8, 16, 32, 64, 128)]
    assert len(set(numbers)) == len(numbers)
    assert all(0.0 < number < 1.0 for number in numbers)
    for tenth in range(10):
        share = sum(tenth <= number * 10 < tenth + 1 for number in numbers) / len(numbers)
        assert share == pytest.approx(0.1, abs=0.015)
    pairs = pairwise(numbers)
    assert fmean((one - 0.5) * (other - 0.5) for one, other in pairs) == pytest.approx(0.0, abs=0.005)


def test_normals_have_mean_0_and_variance_1() -> None:
    numbers = [standard_normal(5, trial, 64) for trial in range(5000)]
    assert fmean(numbers) == pytest.approx(0.0, abs=0.05)
    assert pstdev(numbers) == pytest.approx(1.0, abs=0.03)
