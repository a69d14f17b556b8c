"""Defects seen in Zeus' batch size optimizer; none of them exists here."""

from dataclasses import replace

import pytest

from bso.domain.commands import BeginTrial
from bso.domain.replies import TrialBegun
from bso.domain.statistics import statistics_of
from bso.domain.trial import Outcome
from bso.policies.pruning_thompson.bandit import posterior_of, sample_cheapest
from bso.policies.pruning_thompson.memory import Stage
from tests.unit.domain.builders import A100, JobLife, expect

COSTS = {16: 13.0, 32: 11.0, 64: 10.0, 128: 12.0, 256: 14.0}


@pytest.fixture
def life() -> JobLife:
    job = JobLife()
    job.register(policy="pruning_thompson")
    return job


def test_a_cheap_run_that_did_not_converge_does_not_lower_the_reference(life: JobLife) -> None:
    life.converge(life.begin("a"), 10.0)
    cheap = life.begin("b")
    life.report(cheap, cost=0.5)
    life.give_up(cheap)
    assert life.reference() == 10.0
    assert life.begin("c").bound == 20.0


def test_the_reference_can_rise(life: JobLife) -> None:
    life.enter_mab(COSTS)
    assert life.reference() == 10.0
    life.converge(life.begin("a", batch_size=64), 70.0)
    assert life.reference() == 70.0


def test_the_reference_rises_in_a_window_when_its_trial_leaves_it() -> None:
    life = JobLife()
    life.register(policy="pruning_thompson", window_size=2, num_pruning_rounds=0)
    life.register(batch_sizes=[64])
    for number, cost in enumerate((10.0, 15.0, 16.0)):
        life.converge(life.begin(f"r{number}"), cost)
    assert life.reference() == 15.0


def test_a_killed_trial_does_not_block_pruning(life: JobLife) -> None:
    killed = life.begin("a")
    life.lapse(killed)
    assert life.begin("b").reason == "exploring 64 in round 1 of the pruning stage"


def test_a_trial_killed_while_running_does_not_make_others_fail(life: JobLife) -> None:
    life.begin("a")
    other = life.begin("b")
    life.converge(other, 10.0)
    assert life.begin("c").batch_size == 32


def test_an_out_of_memory_batch_size_is_not_offered_for_ever(life: JobLife) -> None:
    life.register(default_batch_size=256)
    offered = []
    for number in range(30):
        trial = life.begin(f"r{number}")
        offered.append(trial.batch_size)
        if trial.batch_size >= 128:
            life.run_out_of_memory(trial)
        else:
            life.converge(trial, COSTS[trial.batch_size])
    assert sum(size >= 128 for size in offered) <= 4


def test_where_the_smallest_batch_size_ran_out_of_memory_no_larger_one_is_tried(life: JobLife) -> None:
    life.register(batch_sizes=[16, 32], default_batch_size=16)
    offered, warned = [], ""
    for number in range(12):
        trial = life.begin(f"r{number // 3}")
        offered.append(trial.batch_size)
        warned = " ".join(trial.warnings)
        life.run_out_of_memory(trial)
    assert set(offered) == {16}
    assert "the job's owner, or an operator, can add smaller ones" in warned


def test_a_concurrent_trial_reported_after_the_mab_began_is_learnt(life: JobLife) -> None:
    straggler = life.begin("straggler")
    life.enter_mab(COSTS)
    before = life.known().arm(64).costs.count
    assert life.converge(straggler, 10.5).outcome is Outcome.CONVERGED
    assert life.known().arm(64).costs.count == before + 1


def test_nothing_converges_in_a_round_and_the_next_trial_begins_as_any(life: JobLife) -> None:
    for number in range(40):
        life.give_up(life.begin(f"r{number // 3}"))
    assert isinstance(life.send(BeginTrial(hardware=A100)), TrialBegun)
    life.enter_mab(COSTS)


def test_equal_costs_do_not_make_precision_infinite() -> None:
    posterior = posterior_of(statistics_of([5.0] * 100), prior_mean=0.0, prior_precision=0.0)
    assert posterior is not None
    assert posterior.std == pytest.approx(0.05 / 10)


def test_costs_of_zero_do_not_make_precision_infinite_either() -> None:
    posterior = posterior_of(statistics_of([0.0, 0.0]), prior_mean=1.0, prior_precision=1.0)
    assert posterior is not None
    assert posterior.std > 0.0


def test_arms_do_not_share_one_draw() -> None:
    equal = posterior_of(statistics_of([9.0, 11.0]), prior_mean=0.0, prior_precision=0.0)
    assert equal is not None
    chosen = [sample_cheapest({32: equal, 64: equal, 128: equal}, seed=4, trial_number=n)[0] for n in range(300)]
    assert min(chosen.count(size) for size in (32, 64, 128)) > 70


def test_two_trials_in_the_same_second_draw_differently(life: JobLife) -> None:
    life.enter_mab({16: 10.0, 32: 10.1, 64: 9.9, 128: 10.2, 256: 10.05})
    assert life.pruning().stage is Stage.MAB
    for number, size in enumerate(COSTS):
        life.converge(life.begin(f"wide-{number}", batch_size=size), 12.0)
    assert len({life.begin(f"r{number}").batch_size for number in range(20)}) > 1


def test_a_gpu_model_of_300_characters_is_kept_whole(life: JobLife) -> None:
    kind = replace(A100, gpu_model="NVIDIA " + "x" * 293)
    trial = expect(TrialBegun, life.send(BeginTrial(hardware=kind)))
    assert life.row(trial).hardware.gpu_model == kind.gpu_model
