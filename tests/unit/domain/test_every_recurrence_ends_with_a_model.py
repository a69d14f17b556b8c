"""Whatever the costs do, a recurrence can end with a model, and a job finds back to good batch sizes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.policies import own_policies
from bso.domain.trial import Outcome
from bso.policies.pruning_thompson.memory import Stage
from tests.unit.domain.builders import A100, SIZES, JobLife, searching
from tests.unit.domain.worlds import World, has_model, run_recurrence

COSTS = {16: 40.0, 32: 25.0, 64: 20.0, 128: 15.0, 256: 30.0}
RECURRENCES = 45

specs = st.fixed_dictionaries(
    {
        "default_batch_size": st.sampled_from(SIZES),
        "num_pruning_rounds": st.integers(0, 3),
        "window_size": st.sampled_from((0, 0, 2, 5)),
        "beta_knob": st.sampled_from((1.2, 2.0, 2.0, 4.0, None)),
        "early_stopping": st.sampled_from((True, True, False)),
        "max_attempts": st.integers(2, 4),
        "mab_seed": st.integers(0, 1000),
        "cost_budget": st.sampled_from((None, None, 1.0, 50.0)),
        "policy": st.sampled_from(own_policies()),
    }
)
landscapes = st.fixed_dictionaries({size: st.sampled_from((10.0, 12.0, 19.0, 25.0, 60.0, 300.0)) for size in SIZES})


def lived(spec: dict[str, Any], world: World, recurrences: int = RECURRENCES) -> tuple[JobLife, list[bool]]:
    """A job after some recurrences, and which of them ended with a model."""
    life = JobLife()
    life.register(**spec)
    return life, [has_model(life, run_recurrence(life, world, number)) for number in range(recurrences)]


@searching(20)
@given(spec=specs, costs=landscapes, noise=st.sampled_from((0.0, 0.1, 0.5, 1.0)), seed=st.integers(0, 99))
def test_constant_and_noisy_costs(spec: dict[str, Any], costs: dict[int, float], noise: float, seed: int) -> None:
    _, models = lived(spec, World(costs=costs, noise=noise, seed=seed))
    assert all(models)


@searching(20)
@given(
    spec=specs,
    costs=landscapes,
    noise=st.sampled_from((0.0, 0.2)),
    factor=st.sampled_from((0.2, 1.9, 2.1, 5.0, 100.0)),
    changes_at=st.integers(1, 30),
)
def test_costs_that_rise_in_mid_life(
    *, spec: dict[str, Any], costs: dict[int, float], noise: float, factor: float, changes_at: int
) -> None:
    life, models = lived(spec, World(costs=costs, noise=noise, factor=factor, changes_at=changes_at))
    assert all(models)
    if noise == 0.0:
        aborts = sum(1 for row in list(life.rows.values())[-8:] if row.outcome is not Outcome.CONVERGED)
        assert aborts <= 4 or min(costs.values()) * 10 < max(costs.values()), "the job does not recover"


@searching(20)
@given(
    spec=specs,
    costs=landscapes,
    failing=st.sampled_from(SIZES),
    factor=st.sampled_from((1.0, 5.0)),
)
def test_one_batch_size_that_never_converges(
    spec: dict[str, Any], costs: dict[int, float], failing: int, factor: float
) -> None:
    world = World(costs=costs, fails=lambda size, _: size == failing, factor=factor, changes_at=20)
    _, models = lived({**spec, "cost_budget": None}, world)
    assert all(models)


@searching(20)
@given(spec=specs, costs=landscapes, limit=st.sampled_from(SIZES[1:]))
def test_batch_sizes_that_do_not_fit(spec: dict[str, Any], costs: dict[int, float], limit: int) -> None:
    _, models = lived({**spec, "max_attempts": 4, "cost_budget": None}, World(costs=costs, out_of_memory_from=limit))
    assert all(models[1:]), "four batch sizes may run out of memory one after the other, once"


@searching(20)
@given(spec=specs, costs=landscapes, fails_at=st.integers(1, 30), factor=st.sampled_from((1.0, 5.0)))
def test_the_cheapest_known_batch_size_begins_to_fail(
    spec: dict[str, Any], costs: dict[int, float], fails_at: int, factor: float
) -> None:
    best = min(SIZES, key=lambda size: costs[size])
    world = World(
        costs=costs, fails=lambda size, at: size == best and at >= fails_at, factor=factor, changes_at=fails_at
    )
    _, models = lived(spec, world)
    assert sum(not one for one in models) <= 2, "a failure that nobody could foresee may cost a model, not many"
    assert all(models[-10:])


@searching(20)
@given(spec=specs, costs=landscapes, lasts=st.integers(3, 20), begins=st.sampled_from((0, 5, 20)))
def test_nothing_converges_for_a_while(spec: dict[str, Any], costs: dict[int, float], lasts: int, begins: int) -> None:
    world = World(costs=costs, fails=lambda size, at: begins <= at < begins + lasts)
    _, models = lived(spec, world)
    assert not any(models[begins : begins + lasts])
    assert all(models[begins + lasts :])


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_after_a_change_the_best_batch_size_is_found_again(rounds: int) -> None:
    """All batch sizes cost five times as much from recurrence 30 on."""
    life, models = lived(
        {"policy": "pruning_thompson", "num_pruning_rounds": rounds, "default_batch_size": 64},
        World(costs=COSTS, factor=5.0, changes_at=30),
        recurrences=70,
    )
    last = [row.batch_size for row in list(life.rows.values())[-10:]]
    assert all(models)
    assert last.count(128) >= 7
    assert life.pruning(A100).stage is Stage.MAB
