from dataclasses import replace

from bso.domain.commands import PowerMeasurement
from bso.domain.power_sweep import Plan, ProfilingPhase, begin_profiling, begin_step
from bso.domain.replies import NearestPowerProfile
from bso_client.power.agreement import Opening, Stand, Window, joint_opening, resume_together, stand_of

PLAN = Plan(limits_w=(300, 200, 100), wait_steps=0, warmup_steps=2, profile_steps=4)


def measured(limit_w: float) -> PowerMeasurement:
    return PowerMeasurement(power_limit_w=limit_w, average_power_w=limit_w - 10, samples_per_s=1.0)


def stand(windows: int, *, warmup_steps: int = 2, profile_steps: int = 4) -> Stand:
    window = Window(limit_w=300, time_s=1, energy_j=1, samples=1)
    return Stand(windows=(window,) * windows, warmup_steps=warmup_steps, profile_steps=profile_steps)


def test_ranks_take_the_limits_that_suit_all_their_gpus() -> None:
    opening = joint_opening(
        [
            Opening(
                highest_w=300, lowest_w=100, max_power_w=600, profile=(measured(300), measured(200), measured(100))
            ),
            Opening(highest_w=250, lowest_w=150, max_power_w=250),
        ]
    )
    assert opening == Opening(highest_w=250, lowest_w=150, max_power_w=850, profile=(measured(200),))


def test_what_rank_0_knows_counts() -> None:
    noted = Opening(highest_w=300, lowest_w=100, max_power_w=300, profile=(measured(200),))
    assert joint_opening([Opening(highest_w=300, lowest_w=100, max_power_w=300), noted]).profile == ()


def test_ranks_start_as_the_nearest_batch_size_that_rank_0_knows_under_a_limit_that_suits_all() -> None:
    def opening(*limits_w: float, lowest_w: float = 100) -> Opening:
        nearest = NearestPowerProfile(batch_size=64, measurements=tuple(map(measured, limits_w)))
        return Opening(highest_w=300, lowest_w=lowest_w, max_power_w=300, nearest=nearest)

    knows_nothing = Opening(highest_w=300, lowest_w=150, max_power_w=300)
    of_64 = NearestPowerProfile(batch_size=64, measurements=(measured(200),))
    assert joint_opening([opening(400, 200, 100), knows_nothing]).nearest == of_64
    assert joint_opening([opening(400, 100), knows_nothing]).nearest is None
    assert joint_opening([knows_nothing, opening(200)]).nearest is None


def test_ranks_that_resume_keep_their_resting_limit() -> None:
    plan = replace(PLAN, resting_w=150)
    assert resume_together(begin_profiling(plan), [stand(1), stand(2)]).resting_w == 150


def test_a_rank_that_cannot_set_limits_is_named() -> None:
    can = Opening(highest_w=300, lowest_w=100, max_power_w=300)
    assert joint_opening([can, Opening(problem="no permission")]) == Opening(problem="rank 1: no permission")
    assert joint_opening([Opening(problem="no permission")]) == Opening(problem="no permission")


def test_gpus_without_a_common_limit_are_left_alone() -> None:
    small, large = (
        Opening(highest_w=70, lowest_w=50, max_power_w=70),
        Opening(highest_w=700, lowest_w=200, max_power_w=700),
    )
    assert joint_opening([small, large]).problem == (
        "no limit suits all GPUs: one takes at most 70 W, one at least 200 W"
    )


def test_ranks_go_on_at_the_first_limit_that_one_of_them_has_not_measured() -> None:
    state = resume_together(begin_profiling(PLAN), [stand(2), stand(1), stand(2)])
    assert (state.limit_w, state.phase) == (200, ProfilingPhase.WAITING)


def test_ranks_go_on_with_the_steps_that_the_shortest_epoch_has_room_for() -> None:
    state = resume_together(begin_profiling(PLAN), [stand(0), stand(0, warmup_steps=1, profile_steps=2)])
    assert (state.plan.warmup_steps, state.plan.profile_steps) == (1, 2)


def test_the_profile_is_done_when_all_ranks_have_measured_all_limits() -> None:
    assert resume_together(begin_profiling(PLAN), [stand(3), stand(3)]).is_done
    assert not resume_together(begin_profiling(PLAN), [stand(3), stand(2)]).is_done


def test_the_profile_is_done_when_lower_limits_would_only_take_more_of_everything() -> None:
    plan = replace(PLAN, limits_w=(300, 250, 200, 150, 100))

    def measured_until(limits: int) -> Stand:
        took = [(300.0, 1.0, 200.0), (250.0, 1.1, 180.0), (200.0, 1.4, 220.0), (150.0, 2.5, 300.0), (100.0, 9.0, 800.0)]
        windows = (Window(limit_w=w, time_s=time_s, energy_j=j, samples=64) for w, time_s, j in took[:limits])
        return Stand(windows=tuple(windows), warmup_steps=2, profile_steps=4)

    assert resume_together(begin_profiling(plan), [measured_until(4), measured_until(5)]).is_done
    behind = resume_together(begin_profiling(plan), [measured_until(4), measured_until(3)])
    assert (behind.is_done, behind.limit_w) == (False, 150), "one rank alone may have been held up"


def test_a_stand_holds_windows_and_steps() -> None:
    state, _ = begin_step(begin_profiling(PLAN))
    assert stand_of(state, []) == stand(0)
