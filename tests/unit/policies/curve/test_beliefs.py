"""What is believed of batch sizes from what was seen of them."""

import math
import tracemalloc
from dataclasses import replace

from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.hypotheses import OWN_VARIANCES
from tests.unit.policies.curve.made_up_knowledge import SIZES, SPEC, costing, lasting

LINE = {size: 20.0 * (size / 64) ** 0.2 for size in SIZES}
ROUGH = {size: epochs * (1.2 if number % 2 else 1 / 1.2) for number, (size, epochs) in enumerate(LINE.items())}


def own_variance(epochs: dict[int, float]) -> float:
    """How much of its own a batch size is believed to have, where batch sizes needed so many epochs."""
    return Beliefs(SPEC, lasting(epochs), costing()).prior.own_variance


def test_how_much_batch_sizes_have_of_their_own_is_learnt_from_the_job() -> None:
    assert own_variance(LINE) < 0.3 * sum(OWN_VARIANCES) / len(OWN_VARIANCES)
    assert own_variance(ROUGH) > 0.95 * max(OWN_VARIANCES)


def test_before_anything_was_seen_all_are_as_likely() -> None:
    assert math.isclose(own_variance({}), sum(OWN_VARIANCES) / len(OWN_VARIANCES))


def test_what_was_seen_before_a_change_informs_about_it_too() -> None:
    knowledge = lasting(ROUGH)
    changed = Beliefs(SPEC, lasting({64: 30.0}, before=knowledge), costing())
    assert changed.prior.own_variance > 0.95 * max(OWN_VARIANCES)


def test_a_batch_size_never_tried_is_less_certain_where_each_has_much_of_its_own() -> None:
    between = {size: epochs for size, epochs in LINE.items() if size != 64}
    smooth = Beliefs(SPEC, lasting(between), costing())
    rough = Beliefs(SPEC, lasting({size: ROUGH[size] for size in between}), costing())
    assert rough.of(64).variance > 5.0 * smooth.of(64).variance


def test_a_thousand_batch_sizes_cost_no_table_of_all_with_all() -> None:
    """Only of those that ran, and of those that others are compared with, a row is worked out."""
    many = replace(SPEC, batch_sizes=tuple(range(8, 1008)))
    tracemalloc.start()
    beliefs = Beliefs(many, lasting({64: 20.0, 128: 24.0}), costing((64, 128)))
    assert beliefs.cost_ratio_variance(512, 64) > beliefs.cost_ratio_variance(128, 64)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(beliefs.sizes) == 1000
    assert most < 8 * 1000 * 1000 / 2  # bytes: half of one table
