"""What runs of another batch size are worth, against simulation."""

import math

import numpy as np
import pytest

from bso.domain.curve.beliefs import Beliefs
from bso.domain.curve.choosing import TOGETHER
from bso.domain.curve.records import EpochKnowledge
from bso.domain.curve.values import value_of
from tests.unit.domain.curve.knowing import SPEC, costing, lasting


def near_tie(*, runs_of_other: int = 4, other: float = 20.8) -> Beliefs:
    """64 is well known; 128 was seen less often and looks hardly dearer."""
    known = lasting({64: 20.0}, runs=60, noise=0.2), lasting({128: other}, runs=runs_of_other, noise=0.2)
    records = {size: record for one in known for size, record in one.records.items()}
    return Beliefs(SPEC, EpochKnowledge(records=records), costing())


@pytest.mark.parametrize("runs", [1, 4])
def test_the_gain_is_what_the_recurrences_to_come_save_on_average(runs: int) -> None:
    beliefs = near_tie()
    value = value_of(beliefs, 128, 64, recurrences=100, together=(runs,))
    variance, shared, noise = beliefs.variance(128), beliefs.covariance(128, 64), beliefs.of(128).noise
    surprise = np.random.default_rng(1).normal(0.0, math.sqrt(variance + noise / runs), 400_000)
    moved = (variance - shared) / (variance + noise / runs) * surprise
    saved = np.maximum(0.0, 1.0 - np.exp(beliefs.of(128).cost - beliefs.of(64).cost + moved))
    assert value.gain == pytest.approx((100 - runs) * saved.mean(), rel=0.03)
    assert value.runs == runs


def test_a_few_runs_may_be_worth_it_where_one_is_not() -> None:
    beliefs = near_tie(runs_of_other=8, other=20.4)
    one = value_of(beliefs, 128, 64, recurrences=100)
    several = value_of(beliefs, 128, 64, recurrences=100, together=TOGETHER)
    assert one.net < 0.0 < several.net
    assert several.runs in TOGETHER[1:]
    assert several.price == pytest.approx(several.runs * one.price)


def test_what_is_not_worth_it_is_told_of_one_run() -> None:
    dear = value_of(near_tie(other=40.0), 128, 64, recurrences=100, together=TOGETHER)
    assert dear.net < 0.0
    assert dear.runs == 1
