"""Jobs recur in virtual time, and the production rules decide for them."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from bso.domain.commands import EpochCostProbe
from bso.domain.policies import own_policies
from bso.domain.trial import Outcome
from bso.simulator import InvalidSimulation, Probing, Run, Submission, parse_drift, parse_noise, simulate
from bso.simulator.problem import EpochPrice
from bso.simulator.world import World
from tests.unit.simulator.problems import make, profiling_shares

EASY = make({16: (9, 10, 11), 32: (5, 6), 64: (8, 9), 128: (20, 22)})
EPOCH = 1800.0
"""J at the better limit: half of 12 s x 100 W, half of 12 s x 200 W."""
UNLIMITED = 2000.0
"""J at the higher limit: half of 10 s x 200 W, twice."""


def profiling(batch_size: int, *, is_first: bool) -> float:
    """What profiling power limits adds [J] to the first training of a batch size, and to the first of all."""
    return profiling_shares(EASY, batch_size, is_first=is_first)[200.0] * (UNLIMITED - EPOCH)


@pytest.mark.parametrize("policy", own_policies())
def test_each_recurrence_ends_with_a_model_and_costs_what_its_trials_cost(policy: str) -> None:
    run = simulate(EASY, {"policy": policy}, recurrences=40, seed=3)
    assert run.policy == policy
    converged = [trial.recurrence for trial in run.trials if trial.outcome is Outcome.CONVERGED]
    assert sorted(converged) == list(range(1, 41))
    assert sum(run.costs) == pytest.approx(sum(trial.cost for trial in run.trials))
    assert run.regrets[-1] == pytest.approx(
        sum((cost - best) / (5.5 * EPOCH) for cost, best in zip(run.costs, run.oracle.costs, strict=True))
    )


def test_the_same_arguments_give_the_same_run_and_another_seed_gives_another() -> None:
    assert simulate(EASY, recurrences=30, seed=1) == simulate(EASY, recurrences=30, seed=1)
    assert simulate(EASY, recurrences=30, seed=1).costs != simulate(EASY, recurrences=30, seed=2).costs


@pytest.mark.parametrize("policy", own_policies())
def test_a_run_holds_what_models_cost_in_the_end_and_what_the_policy_expects_of_them(policy: str) -> None:
    run = simulate(EASY, {"policy": policy}, recurrences=40, seed=3, drift=parse_drift("epoch-cost:x2@10"))
    assert run.mean_costs == pytest.approx({16: 20 * EPOCH, 32: 11 * EPOCH, 64: 17 * EPOCH, 128: 42 * EPOCH})
    often = run.expected[32]
    assert run.batch_sizes.count(32) > 20
    assert abs(often.cost - run.mean_costs[32]) < 4 * often.deviation < 0.2 * often.cost


@pytest.mark.parametrize("policy", own_policies())
def test_a_run_holds_what_was_taken_for_the_best_on_the_way(policy: str) -> None:
    run = simulate(EASY, {"policy": policy}, recurrences=40, seed=3)
    assert len(run.best_known) == 40
    assert {known.batch_size for known in run.best_known[30:]} == {32}
    expected = run.best_known[-1].expected_cost
    assert expected is not None
    assert expected == pytest.approx(run.expected[32].cost)
    assert run.change_points == 0
    assert simulate(EASY, {"policy": policy}, recurrences=40, seed=3, drift=parse_drift("epochs:x4@20")).change_points


def test_as_often_as_in_the_paper_unless_said_otherwise() -> None:
    assert simulate(EASY).recurrences == 2 * 4 * 2


def epochs_by_run(run: Run, batch_size: int) -> dict[int, int]:
    trials = sorted((trial for trial in run.trials if trial.batch_size == batch_size), key=lambda one: one.trial_number)
    return {k: trial.epochs for k, trial in enumerate(trials) if trial.outcome is Outcome.CONVERGED}


def test_the_kth_run_of_a_batch_size_is_the_same_for_every_policy() -> None:
    unhurried = {"early_stopping": False}
    other = unhurried | {"policy": "pruning_thompson"}
    first, second = simulate(EASY, unhurried, recurrences=60, seed=5), simulate(EASY, other, recurrences=60, seed=5)
    assert first.batch_sizes != second.batch_sizes
    for size in EASY.batch_sizes:
        one, two = epochs_by_run(first, size), epochs_by_run(second, size)
        assert one.keys() & two.keys()
        assert all(one[k] == two[k] for k in one.keys() & two.keys())


def test_a_job_of_one_batch_size_wastes_nothing_but_the_profiling() -> None:
    run = simulate(make({32: (5, 6, 7)}, default=32), recurrences=50, seed=1)
    assert run.regret(50) == pytest.approx(profiling(32, is_first=True) / (6 * EPOCH))


def test_only_the_first_training_of_a_batch_size_profiles_power_limits() -> None:
    run = simulate(EASY, recurrences=30, seed=1)
    profiling = [trial.batch_size for trial in run.trials if trial.is_profiling]
    assert sorted(profiling) == sorted({trial.batch_size for trial in run.trials})


def test_trainings_that_overlap_profile_until_the_first_of_them_has_a_profile() -> None:
    run = simulate(EASY, {"policy": "pruning_thompson"}, recurrences=30, seed=1, overlap=3)
    first = [trial for trial in run.trials if trial.batch_size == 64 and trial.began_s == 0.0]
    assert len(first) == 4
    assert all(trial.is_profiling for trial in first)
    later = [trial for trial in run.trials if trial.batch_size == 64 and trial.began_s > 11.0]
    assert later
    assert not any(trial.is_profiling for trial in later)


def test_nothing_is_profiled_where_there_is_one_power_limit() -> None:
    measured = {size: epochs[1:] for size, epochs in EASY.epochs.items()}
    run = simulate(replace(EASY, epochs=measured), recurrences=12, seed=1)
    assert not any(trial.is_profiling for trial in run.trials)


def test_profiling_is_paid_but_neither_judged_nor_learnt() -> None:
    run = simulate(EASY, recurrences=12, seed=1)
    for trial in run.trials:
        ordinary = trial.epochs * EPOCH
        assert trial.judged_cost == pytest.approx(ordinary if trial.epochs > 1 else trial.cost)
        added = profiling(trial.batch_size, is_first=trial.trial_number == 1) if trial.is_profiling else 0.0
        assert trial.cost == pytest.approx(ordinary + added)


def test_profiling_takes_several_epochs_where_an_epoch_has_few_steps() -> None:
    """150 steps make up for one limit in the first epoch (fifty after the first step), and for the other one as well;
    60 for one in each of two epochs.
    """
    problem = make({64: (6,)})
    costs = {}
    for samples in (150 * 64, 60 * 64):
        short = replace(problem, workload=replace(problem.workload, samples=samples))
        run = simulate(short, recurrences=2, seed=1)
        first, second = run.trials
        assert (first.is_profiling, second.is_profiling) == (True, False)
        assert first.judged_cost == pytest.approx(6 * EPOCH), "all profiled epochs are left out"
        assert second.cost == pytest.approx(6 * EPOCH)
        costs[samples // 64] = first.cost - 6 * EPOCH
    assert costs == pytest.approx({150: 51 / 150 * (UNLIMITED - EPOCH), 60: 51 / 60 * (UNLIMITED - EPOCH)})


def test_limits_that_were_not_all_measured_when_the_training_ended_are_measured_anew_by_the_next() -> None:
    problem = make({64: (2,)})
    short = replace(problem, workload=replace(problem.workload, samples=40 * 64))
    run = simulate(short, recurrences=5, seed=1)
    assert [trial.is_profiling for trial in run.trials] == [True] * 5
    assert all(trial.judged_cost == pytest.approx(trial.cost) for trial in run.trials), "nothing to compare with"


def test_a_batch_size_that_was_not_measured_starts_at_the_best_limit_of_the_nearest() -> None:
    """Its first step does; one at the highest limit would cost more."""
    run = simulate(EASY, recurrences=12, seed=1)
    first, *others = [trial for trial in run.trials if trial.is_profiling]
    assert len(others) >= 2
    for trial in (first, *others):
        steps = math.ceil(50_000 / trial.batch_size)
        added = (trial.cost - trial.epochs * EPOCH) / (UNLIMITED - EPOCH) * steps
        assert added == pytest.approx(51 if trial is first else 50)


def test_at_least_one_whole_epoch_is_paid_for_a_batch_size_that_is_hopeless() -> None:
    problem = make({32: (2,), 64: (2,), 128: (None,)}, default=64, max_epochs=50)
    run = simulate(problem, {"beta_knob": 1.0}, recurrences=10, seed=1)
    hopeless = [trial for trial in run.trials if trial.batch_size == 128]
    assert hopeless
    assert all(trial.epochs >= 1 and trial.outcome is Outcome.COST_EXCEEDED for trial in hopeless)


def test_a_recurrence_whose_attempts_have_all_failed_tries_on() -> None:
    run = simulate(make({32: (5, None, None, None)}, default=32), {"max_attempts": 2}, recurrences=20, seed=1)
    assert len(run.batch_sizes) == 20
    assert any("." in trial.recurrence_id for trial in run.trials)
    assert run.tries_per_recurrence == len(run.trials) / 20 > 2


@pytest.mark.parametrize("overlap", [0, 3])
def test_so_many_others_run_beside_each_recurrence(overlap: int) -> None:
    run = simulate(EASY, recurrences=40, seed=1, overlap=overlap)
    began = sorted(trial.began_s for trial in run.trials)
    assert began[: overlap + 1] == [0.0] * (overlap + 1)
    assert began[overlap + 1] > 0
    for trial in run.trials:
        beside = [one for one in run.trials if one.began_s < trial.ended_s and one.ended_s > trial.began_s]
        recurrences = {one.recurrence for one in beside if one.began_s <= trial.began_s < one.ended_s}
        assert len(recurrences) <= overlap + 1


def test_reports_of_overlapping_trials_come_in_the_order_of_time() -> None:
    run = simulate(EASY, recurrences=40, seed=1, overlap=3)
    assert all(one.ended_s <= two.ended_s for one, two in pairwise(run.trials))
    numbers = [trial.trial_number for trial in run.trials]
    assert numbers != sorted(numbers)


def test_submitted_recurrences_begin_when_they_are_submitted_and_are_as_long_as_they_are() -> None:
    submissions = [Submission(start_s=1000.0 * number, length=1.0 + number / 5) for number in range(4)]
    run = simulate(make({32: (5,)}, default=32), submissions=submissions, seed=1)
    assert [trial.began_s for trial in run.trials] == [0.0, 1000.0, 2000.0, 3000.0]
    assert [trial.cost for trial in run.trials[1:]] == pytest.approx([length * 5 * EPOCH for length in (1.2, 1.4, 1.6)])
    assert run.oracle.costs == pytest.approx(tuple(length * 5 * EPOCH for length in (1.0, 1.2, 1.4, 1.6)))


def test_a_rise_of_the_epochs_is_met_with_more_epochs_and_paid_by_the_oracle_too() -> None:
    run = simulate(make({32: (30,)}, default=32), recurrences=10, seed=1, drift=parse_drift("epochs:x2.5@6"))
    assert run.oracle.mean_costs == pytest.approx([30 * EPOCH] * 5 + [75 * EPOCH] * 5)
    assert {trial.epochs for trial in run.trials if trial.outcome is Outcome.CONVERGED} == {30, 75}


def test_a_creeping_rise_of_the_epoch_cost() -> None:
    run = simulate(make({32: (5,)}, default=32), recurrences=5, seed=1, drift=parse_drift("epoch-cost:+1%"))
    assert run.costs[1:] == pytest.approx([5 * EPOCH * 1.01**number for number in range(1, 5)])
    assert run.regrets[-1] == pytest.approx(run.regrets[0])


def test_when_the_optimum_moves_the_oracle_moves_with_it() -> None:
    run = simulate(EASY, recurrences=20, seed=1, drift=parse_drift("optimum@11"))
    assert run.oracle.batch_sizes == (32,) * 10 + (64,) * 10


def test_the_optimum_moves_up_and_down_and_ends_repeat() -> None:
    """By the trainings of each batch size, which take 1, 2, 3 and 4 epochs before."""
    problem = make({16: (1,), 32: (2,), 64: (3,), 128: (4,)}, default=32)
    world = World(problem=problem, seed=1, eta_knob=0.5, drift=parse_drift("optimum:+1@3,optimum:-3@5"))
    needed = [[world.epochs_to_target(size, 1, number) for size in problem.batch_sizes] for number in (2, 3, 5)]
    assert needed == [[1, 2, 3, 4], [1, 1, 2, 3], [3, 4, 4, 4]]


def test_a_chance_of_failure_strikes_everybody() -> None:
    run = simulate(EASY, recurrences=200, seed=1, failure_rate=0.3)
    assert len(run.trials) > 200 * 1.2
    assert run.oracle.mean_costs[0] == pytest.approx((5.5 + 0.3 / 0.7 * 50) * EPOCH)
    assert sum(run.oracle.costs) == pytest.approx(sum(run.oracle.mean_costs), rel=0.2)


def test_a_default_that_never_converges_cannot_be_compared_with() -> None:
    run = simulate(make({32: (5,), 64: (None,)}), recurrences=10, seed=1)
    assert run.default is None
    assert math.isnan(run.cost_over_default(10))
    assert math.isnan(run.last_time_over_default)
    assert math.isnan(run.last_energy_over_default)


def test_the_default_runs_at_the_largest_power_limit() -> None:
    run = simulate(make({64: (8,)}), recurrences=30, seed=1)
    assert run.default is not None
    assert run.default.mean_energies_j[0] == 8 * 10 * 200
    assert run.last_energy_over_default == pytest.approx(1200 / 2000)
    assert run.last_time_over_default == pytest.approx(1.2)
    assert run.cost_over_default(30) == pytest.approx(EPOCH / 2000 - 1, abs=0.01)


def test_the_share_of_wrong_batch_sizes_counts_the_last_ten() -> None:
    run = simulate(EASY, recurrences=100, seed=1)
    assert run.wrong_share(100) == sum(size != 32 for size in run.batch_sizes[-10:]) / 10 < 0.5
    assert run.wrong_share(5) == sum(size != 32 for size in run.batch_sizes[:5]) / 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"recurrences": 0}, "at least 1 recurrence"),
        ({"overlap": -1}, "0 overlaps, got"),
        ({"failure_rate": 1.0}, "from 0 to below 1, got 1"),
        ({"spec_overrides": {"policy": "magic"}}, "policy 'magic' is not installed here, only curve"),
        ({"spec_overrides": {"eta_knob": 2.0}}, "eta_knob must be"),
        ({"spec_overrides": {"max_epochs": 5}}, "max_epochs cannot be overridden"),
    ],
)
def test_what_cannot_be_simulated_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidSimulation, match=said):
        simulate(EASY, **arguments)  # type: ignore[arg-type]


WIDE = make({16: (20, 21), 32: (18, 19), 64: (16, 18), 128: (14, 15), 256: (12, 13), 512: (11, 12)}, default=16)


def test_trainings_probe_within_the_budget_and_pay_for_it() -> None:
    probing, usual = (simulate(WIDE, recurrences=1, probing=each) for each in (Probing(), None))
    [with_probes], [without] = probing.trials, usual.trials
    assert with_probes.epochs == without.epochs
    assert 0.0 < with_probes.time_s - without.time_s <= 0.05 * without.time_s * 1.06
    assert with_probes.cost > without.cost
    assert with_probes.judged_cost == pytest.approx(without.judged_cost), "probing is no part of it"


class Watched(Probing):
    """Notes what each probe is made of: the batch size, and the time of an epoch of it [s]."""

    def __init__(self, epochs_s: dict[int, float]) -> None:
        super().__init__()
        self._epochs_s = epochs_s

    def own_probe(self, batch_size: int, epoch: EpochPrice) -> EpochCostProbe:
        self._epochs_s[batch_size] = epoch.time_s
        return super().own_probe(batch_size, epoch)

    def probe(self, seed: int, trial_number: int, batch_size: int, epoch: EpochPrice) -> EpochCostProbe:
        self._epochs_s[batch_size] = epoch.time_s
        return super().probe(seed, trial_number, batch_size, epoch)

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def test_all_that_a_training_probes_shares_the_factor_of_its_run() -> None:
    noisy: dict[int, float] = {}
    quiet: dict[int, float] = {}
    simulate(WIDE, recurrences=1, noise=parse_noise("run:0.5"), probing=Watched(noisy))
    simulate(WIDE, recurrences=1, probing=Watched(quiet))
    assert len(quiet) >= 3
    factors = [noisy[size] / epoch_s for size, epoch_s in quiet.items()]
    assert factors == pytest.approx([factors[0]] * len(factors))
    assert abs(math.log(factors[0])) > 0.01


def test_without_a_budget_nothing_is_probed() -> None:
    spec = {"probing_budget": 0.0}
    assert simulate(WIDE, spec, recurrences=5, probing=Probing()).costs == simulate(WIDE, spec, recurrences=5).costs


def test_a_policy_that_wants_no_probes_gets_none() -> None:
    spec = {"policy": "pruning_thompson"}
    assert simulate(WIDE, spec, recurrences=5, probing=Probing()).costs == simulate(WIDE, spec, recurrences=5).costs


def test_with_probes_the_best_batch_size_is_reached_in_fewer_trainings() -> None:
    """Where an epoch costs the less the larger the batch size is, as on most GPUs."""
    falling = {
        size: tuple(replace(one, time_s=one.time_s * (16 / size) ** 0.6) for one in measured)
        for size, measured in WIDE.epochs.items()
    }
    problem = replace(WIDE, epochs=falling)

    def reached(probing: Probing | None) -> float:
        runs = [simulate(problem, recurrences=20, seed=seed, probing=probing) for seed in range(8)]
        return sum(run.regret(10) for run in runs)

    assert reached(Probing()) < 0.9 * reached(None)


def test_what_does_not_fit_shows_in_a_probe_and_costs_no_training() -> None:
    problem = replace(WIDE, infeasible=frozenset({256, 512}))
    run = simulate(problem, recurrences=20, seed=1, probing=Probing())
    assert Outcome.INFEASIBLE not in {trial.outcome for trial in run.trials}


def test_the_same_arguments_give_the_same_probes() -> None:
    one, other, noisy = (simulate(WIDE, recurrences=10, seed=1, probing=Probing(own=own)) for own in (0.05, 0.05, 0.4))
    assert one == other
    assert one.costs != noisy.costs
