"""Noise, spikes and changes of epoch costs are distinguished, run by run."""

import math
import random
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

import pytest

from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.cost_observations import learnt_cost
from bso.policies.curve.cost_records import EpochCostKnowledge, LearntEpochCost, with_learnt_cost
from bso.policies.curve.epoch_records import EpochKnowledge
from bso.policies.curve.view import EpochCostSeen, known_costs, running_cost
from tests.unit.policies.curve.made_up_knowledge import SIZES, SPEC

LEVEL = math.log(100.0)
SEEDS = range(12)


def of(batch_size: int, knowledge: EpochCostKnowledge) -> float:
    """The believed mean of ln epoch cost."""
    return Beliefs(SPEC, EpochKnowledge(), knowledge).of(batch_size).epoch_cost


def after(
    runs: Iterable[tuple[int, float]], knowledge: EpochCostKnowledge | None = None
) -> tuple[EpochCostKnowledge, list[LearntEpochCost]]:
    """The knowledge after runs, of a batch size and a value of ln epoch cost each, and what each taught."""
    knowledge, every = knowledge or EpochCostKnowledge(), []
    for size, value in runs:
        beliefs = Beliefs(SPEC, EpochKnowledge(), knowledge)
        every.append(learnt_cost(beliefs, knowledge, size, EpochCostSeen(value=value, noise=0.0), profiling_ratio=None))
        knowledge = with_learnt_cost(knowledge, size, every[-1])
    return knowledge, every


def noisy(seed: int, deviation: float, count: int, *, level: float = LEVEL) -> list[tuple[int, float]]:
    """Runs of 64 mostly, and of other batch sizes, all of the same cost but for noise."""
    draw = random.Random(seed)
    return [
        (64 if draw.random() < 0.7 else draw.choice(SIZES), level + draw.gauss(0.0, deviation)) for _ in range(count)
    ]


def changes(learnt: Iterable[LearntEpochCost]) -> int:
    return sum(one.moved > 0 for one in learnt)


@pytest.mark.parametrize("deviation", [0.02, 0.1, 0.3, 0.5])
def test_noise_is_hardly_ever_taken_for_a_change(deviation: float) -> None:
    every = [one for seed in SEEDS for one in after(noisy(seed, deviation, 60))[1]]
    assert changes(every) <= 0.01 * len(every)


def test_spikes_are_hardly_ever_taken_for_a_change() -> None:
    def spiky(seed: int) -> list[tuple[int, float]]:
        draw = random.Random(100 + seed)
        return [
            (size, value + (math.log(3.0) if draw.random() < 0.1 else 0.0)) for size, value in noisy(seed, 0.03, 60)
        ]

    every = [one for seed in SEEDS for one in after(spiky(seed))[1]]
    assert changes(every) <= 0.01 * len(every)
    assert sum(one.is_spike for one in every) == pytest.approx(0.1 * len(every), rel=0.5)


@pytest.mark.parametrize(("deviation", "within"), [(0.02, 2), (0.1, 4), (0.3, 10)])
def test_a_lasting_step_is_followed(deviation: float, within: int) -> None:
    """Of half of the jobs, more than half of the step is believed after so many runs."""
    step = math.log(1.5)
    followed = []
    for seed in SEEDS:
        knowledge, _ = after(noisy(seed, deviation, 30))
        needed = 0
        for run in noisy(seed + 100, deviation, 15, level=LEVEL + step):
            needed += of(64, knowledge) <= LEVEL + 0.5 * step
            knowledge, _ = after([run], knowledge)
        followed.append(needed)
    assert median(followed) <= within


def test_a_step_moves_batch_sizes_that_have_not_run_since() -> None:
    knowledge, _ = after([(size, LEVEL) for size in SIZES] * 3)
    knowledge, learnt = after([(64, LEVEL + 0.4)] * 3, knowledge)
    assert changes(learnt) == 1
    assert {size: of(size, knowledge) for size in SIZES} == {
        size: pytest.approx(LEVEL + 0.4, abs=0.1) for size in SIZES
    }


def test_after_several_steps_all_batch_sizes_are_still_known_on_one_level() -> None:
    knowledge, _ = after([(size, LEVEL + 0.1 * i) for i, size in enumerate(SIZES)] * 2)
    for level in (0.5, -0.3, 0.7):
        knowledge, learnt = after([(64, LEVEL + 0.2 + level), (128, LEVEL + 0.3 + level)] * 3, knowledge)
        assert changes(learnt) == 1
    differences = [of(larger, knowledge) - of(size, knowledge) for size, larger in pairwise(SIZES)]
    assert differences == [pytest.approx(0.1, abs=0.05)] * 5


def test_two_runs_far_above_all_noise_are_a_change_and_no_spikes() -> None:
    knowledge, _ = after([(64, LEVEL + 0.02 * (-1) ** i) for i in range(16)])
    knowledge, learnt = after([(64, LEVEL + 1.0)] * 2, knowledge)
    assert [one.moved for one in learnt] == [0, 2]
    assert knowledge.spikes == 0


def test_steps_leave_no_spikes_behind() -> None:
    knowledge, _ = after([(64, LEVEL), (128, LEVEL)] * 10)
    for step in range(1, 6):
        knowledge, learnt = after([(64, LEVEL + 0.5 * step), (128, LEVEL + 0.5 * step)] * 2, knowledge)
        assert changes(learnt) == 1
    assert knowledge.spikes == 0


def test_one_spike_of_a_known_batch_size_is_not_believed() -> None:
    knowledge, _ = after([(64, LEVEL + 0.02 * (-1) ** i) for i in range(8)])
    knowledge, [spike] = after([(64, LEVEL + math.log(3.0))], knowledge)
    assert spike.is_spike
    assert of(64, knowledge) == pytest.approx(LEVEL, abs=0.03)


def test_a_first_run_that_was_a_spike_is_forgotten_when_the_second_is_not() -> None:
    knowledge, _ = after([(size, LEVEL) for size in SIZES if size != 64] * 3)
    knowledge, _ = after([(64, LEVEL + math.log(3.0))], knowledge)
    knowledge, [second] = after([(64, LEVEL)], knowledge)
    assert second.forgets
    assert second.is_spike
    assert knowledge.record(64).sums.weight == 1.0
    assert of(64, knowledge) == pytest.approx(LEVEL, abs=0.02)


@pytest.mark.parametrize("excess", [0.4, 0.6, 1.1])
def test_a_second_run_like_the_first_confirms_it(excess: float) -> None:
    knowledge, _ = after([(size, LEVEL + 0.02 * (-1) ** i) for i in range(4) for size in SIZES if size != 64])
    knowledge, learnt = after([(64, LEVEL + excess), (64, LEVEL + excess + 0.01)] * 2, knowledge)
    assert not any(one.forgets for one in learnt)
    assert changes(learnt) == 0
    assert of(64, knowledge) > LEVEL + 0.7 * excess


def test_runs_since_a_change_are_counted_whatever_batch_size_they_are_of() -> None:
    knowledge, _ = after([(64, LEVEL), (128, LEVEL)] * 10)
    knowledge, learnt = after([(64, LEVEL + 0.4), (32, LEVEL + 0.4), (128, LEVEL + 0.4), (64, LEVEL + 0.4)], knowledge)
    [changed] = [one for one in learnt if one.moved]
    assert changed.moved == learnt.index(changed) + 1
    assert {size: record.sums.weight > 0.0 for size, record in knowledge.records.items()} == dict.fromkeys(
        (64, 128, 32), True
    )


def test_a_running_trial_far_above_all_noise_shows_a_rise_of_all_costs() -> None:
    knowledge, _ = after([(size, LEVEL + 0.02 * (-1) ** i) for i in range(3) for size in SIZES])
    beliefs = Beliefs(SPEC, EpochKnowledge(), knowledge)
    usual = running_cost(beliefs.of(64), known_costs(knowledge, 64), EpochCostSeen(value=LEVEL + 0.03, noise=0.0))
    far = running_cost(beliefs.of(64), known_costs(knowledge, 64), EpochCostSeen(value=LEVEL + 1.0, noise=0.0))
    assert usual.rise == 0.0
    assert 0.6 < far.rise < 1.0
    assert LEVEL + 0.6 < far.usual < LEVEL + 1.0


def test_in_noise_an_expensive_run_says_little_of_its_batch_size() -> None:
    knowledge, _ = after([(64, LEVEL + 0.5 * z) for z in (-1.4, -0.7, 0.0, 0.7, 1.4, -1.0, 1.0, 0.3)])
    beliefs = Beliefs(SPEC, EpochKnowledge(), knowledge)
    shown = running_cost(beliefs.of(64), known_costs(knowledge, 64), EpochCostSeen(value=LEVEL + 0.8, noise=0.0))
    assert shown.own == LEVEL + 0.8
    assert shown.usual < LEVEL + 0.25
    assert shown.rise == 0.0


def test_what_is_remembered_does_not_grow() -> None:
    knowledge, _ = after(noisy(1, 0.3, 150))
    assert len(knowledge.recent) == 12
    assert max(record.sums.weight for record in knowledge.records.values()) <= 31.0
    assert knowledge.freedom <= 50.0


def test_few_reports_say_less_of_a_run_the_more_epochs_differ() -> None:
    knowledge, _ = after([(64, LEVEL)] * 10)
    one, many = (EpochCostSeen(value=LEVEL + 0.6, noise=0.3**2 / reports) for reports in (1, 100))
    beliefs = Beliefs(SPEC, EpochKnowledge(), knowledge)
    short, long = (running_cost(beliefs.of(128), known_costs(knowledge, 128), seen) for seen in (one, many))
    assert short.own < long.own <= LEVEL + 0.6
    assert short.usual < long.usual
    lessons = [learnt_cost(beliefs, knowledge, 128, seen, profiling_ratio=None) for seen in (one, many)]
    assert lessons[0].weight < 0.1 < lessons[1].weight


def test_how_much_epochs_differ_within_a_run_is_learnt_from_all_runs() -> None:
    knowledge = EpochCostKnowledge()
    seen = EpochCostSeen(value=LEVEL, noise=0.0, squares=99 * 0.3**2, freedom=99.0, interval=0.5)
    for _ in range(3):
        beliefs = Beliefs(SPEC, EpochKnowledge(), knowledge)
        learnt = learnt_cost(beliefs, knowledge, 64, seen, profiling_ratio=None)
        knowledge = with_learnt_cost(knowledge, 64, learnt)
    assert math.sqrt(knowledge.within_noise) == pytest.approx(0.3, rel=0.02)
    assert knowledge.interval == 0.5
    handed_on = knowledge.handed_on()
    assert (handed_on.within_noise, handed_on.interval) == (knowledge.within_noise, 0.5)
