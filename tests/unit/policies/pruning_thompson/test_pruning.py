"""The exploration with pruning, sentence by sentence."""

from bso.domain.trial import Outcome
from bso.policies.pruning_thompson.memory import RoundEnded, Stage, StageEntered
from tests.unit.domain.builders import A100, V100, JobLife

COSTS = {16: 50.0, 32: 22.0, 64: 20.0, 128: 15.0, 256: 60.0}


def job(**spec: object) -> JobLife:
    life = JobLife()
    life.register(policy="pruning_thompson", **spec)  # type: ignore[arg-type]  # fields of the specification
    return life


def explored(life: JobLife, count: int) -> list[int]:
    sizes = []
    for number in range(count):
        trial = life.begin(f"r{number}")
        sizes.append(trial.batch_size)
        if trial.bound is not None and COSTS[trial.batch_size] > trial.bound:
            life.exceed(trial)
        else:
            life.converge(trial, COSTS[trial.batch_size])
    return sizes


def test_from_the_default_downwards_until_one_fails_then_upwards_until_one_fails() -> None:
    assert explored(job(), 5) == [64, 32, 16, 128, 256]


def test_after_the_first_failure_downwards_smaller_ones_are_not_tried() -> None:
    life = job()
    life.converge(life.begin("a"), 20.0)
    life.exceed(life.begin("b"))
    assert life.begin("c").batch_size == 128


def test_those_that_converged_survive_and_the_cheapest_is_the_next_default() -> None:
    life = job()
    explored(life, 5)
    (ended,) = life.happened(RoundEnded)
    assert (ended.survivors, ended.pruned, ended.next_default_batch_size) == ((32, 64, 128), (16, 256), 128)
    assert life.begin("next").batch_size == 128


def test_a_failure_excludes_for_the_rest_of_the_stage() -> None:
    life = job(num_pruning_rounds=3)
    sizes = explored(life, 11)
    assert sizes[5:] == [128, 64, 32] * 2


def test_after_the_last_round_the_survivors_are_sampled() -> None:
    life = job()
    explored(life, 8)
    (entered,) = life.happened(StageEntered)
    assert (entered.stage, entered.batch_sizes) == (Stage.MAB, (32, 64, 128))


def test_with_no_pruning_rounds_sampling_begins_at_once() -> None:
    life = job(num_pruning_rounds=0)
    trial = life.begin()
    assert life.pruning().stage is Stage.MAB
    assert trial.batch_size == 16


def test_the_first_final_verdict_moves_the_exploration_and_later_ones_only_add_costs() -> None:
    life = job()
    first, second = life.begin("a"), life.begin("b")
    assert (first.batch_size, second.batch_size) == (64, 64)
    life.converge(first, 20.0)
    life.give_up(second)
    verdict = life.pruning().verdicts[64]
    assert verdict.has_converged
    assert life.begin("c").batch_size == 32
    third = life.begin("d")
    assert third.batch_size == 64
    life.converge(third, 30.0)
    assert life.pruning().verdicts[64].costs.mean == 25.0


def test_a_convergence_above_the_bound_counts_as_a_failure_here_and_the_user_keeps_the_model() -> None:
    life = job()
    life.converge(life.begin("a"), 20.0)
    trial = life.begin("b")
    noted = life.converge(trial, 41.0)
    assert (trial.batch_size, noted.outcome, noted.should_retry) == (32, Outcome.CONVERGED, False)
    assert life.row(trial).is_over_bound
    assert not life.pruning().verdicts[32].has_converged
    assert life.known().arm(32).costs.mean == 41.0, "its cost is learnt in full"
    assert life.begin("c").batch_size == 128


def test_an_infeasible_default_does_not_end_the_downward_pass() -> None:
    life = job(default_batch_size=256)
    life.run_out_of_memory(life.begin("a"))
    trial = life.begin("a")
    assert trial.batch_size == 128
    life.converge(trial, 15.0)
    assert life.begin("b").batch_size == 64


def test_a_round_in_which_nothing_converges_starts_again_at_the_default_in_the_next_recurrence() -> None:
    life = job(batch_sizes=[32, 64], default_batch_size=64, max_attempts=9)
    life.give_up(life.begin("a"))
    life.give_up(life.begin("a"))
    third = life.begin("a")
    assert "begins again next time" in third.reason
    life.finish(third, Outcome.INTERRUPTED)
    assert life.begin("c").reason == "exploring 64 in round 1 of the pruning stage"


def test_while_the_size_under_exploration_runs_elsewhere_others_get_the_cheapest_known() -> None:
    life = job()
    life.converge(life.begin("a"), 20.0)
    life.converge(life.begin("b"), 18.0)
    exploring, other = life.begin("c"), life.begin("d")
    assert (exploring.batch_size, other.batch_size) == (16, 32)
    assert "explored by another trial" in other.reason


def test_a_round_does_not_wait_for_trials_that_began_before_it() -> None:
    life = job(batch_sizes=[32, 64], default_batch_size=64)
    life.converge(life.begin("a"), 20.0)
    exploring, beside = life.begin("exploring"), life.begin("beside")
    assert (exploring.batch_size, beside.batch_size) == (32, 64), "the second one never ends"
    life.converge(exploring, 18.0)
    second = life.begin("second")
    assert second.reason == "exploring 32 in round 2 of the pruning stage"
    life.converge(second, 18.0)
    assert life.begin("third").reason == "exploring 64 in round 2 of the pruning stage"


def test_before_any_result_concurrent_trials_get_the_default() -> None:
    life = job()
    assert [life.begin(name).batch_size for name in "abc"] == [64, 64, 64]


def test_if_the_default_is_infeasible_concurrent_trials_get_the_nearest_smaller() -> None:
    life = job(default_batch_size=128)
    for name in "ab":
        life.run_out_of_memory(life.begin(name, batch_size=128))
    assert [life.begin(name).batch_size for name in "xyz"] == [64, 64, 64]


def test_a_suspended_trial_does_not_hold_its_batch_size() -> None:
    life = job()
    life.converge(life.begin("a"), 20.0)
    sleeping = life.begin("b")
    life.lapse(sleeping)
    assert life.begin("c").batch_size == sleeping.batch_size


def test_stages_are_kept_per_hardware_kind() -> None:
    life = job()
    explored(life, 3)
    assert life.begin("elsewhere", hardware=V100).batch_size == 64
    assert life.pruning(A100).verdicts.keys() == {64, 32, 16}


def test_a_change_point_while_pruning_begins_the_round_again_with_all_batch_sizes() -> None:
    life = job()
    explored(life, 5)
    assert life.pruning().pruned == {16, 256}
    life.exceed(life.begin("risen"))
    life.exceed(life.begin("risen"))
    last = life.begin("risen")
    assert (last.bound, last.is_last_attempt) == (None, True)
    life.converge(last, COSTS[last.batch_size] * 5)
    known = life.known()
    state = life.pruning()
    assert (known.change_points, state.stage, state.pruned) == (1, Stage.PRUNING, frozenset())
    assert state.verdicts.keys() == {last.batch_size}
