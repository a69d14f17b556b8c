"""Jobs that move to another kind of GPU, and jobs that get a new version."""

from dataclasses import replace
from pathlib import Path

import pytest

from bso.domain.policies import own_policies
from bso.domain.trial import Outcome
from bso.simulator import (
    BatchSizeProblem,
    InvalidSimulation,
    Run,
    parse_changes,
    parse_drift,
    parse_noise,
    read_power_trace,
    read_train_trace,
    simulate,
)
from bso.simulator.optimizer import SimulatedJob
from bso.simulator.phases import Changes, Move, NewVersion, in_phases_of_traces
from bso.simulator.problem import problems_of
from bso.simulator.world import World
from tests.unit.simulator.problems import WORKLOAD, make

MOVED = parse_changes(move_from="old@5")
RENEWED = parse_changes(new_version="0.95@5")
BOTH = parse_changes(move_from="old@5", new_version="0.95@9")
EPOCHS = {16: 9, 32: 5, 64: 7}
"""To the target metric 0.9; twice as many to 0.95."""


def power_rows(times_s: dict[int, float], watts: float) -> str:
    """A power trace with two power limits: at the lower one epochs take a fifth longer, with half the power."""
    lines = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    for size, time_s in times_s.items():
        lines.append(f"shapes,tiny,{size},sgd,{watts / 2},{1.2 * time_s},{watts / 2}")
        lines.append(f"shapes,tiny,{size},sgd,{watts},{time_s},{watts}")
    return "\n".join(lines) + "\n"


def changed(folder: Path, changes: Changes, *, old: dict[int, float], own: dict[int, float]) -> BatchSizeProblem:
    """A problem on the GPU ``own``; on both GPUs an epoch of a batch size takes so many seconds."""
    sizes = sorted(old | own)
    train = "dataset,network,batch_size,optimizer,run,target_metric,target_epoch\n"
    for size in sizes:
        for target, factor in ((0.9, 1), (0.95, 2)):
            train += f"shapes,tiny,{size},sgd,1,{target},{factor * EPOCHS.get(size, 6)}\n"
    (folder / "summary_train.csv").write_text(train)
    (folder / "summary_power_old.csv").write_text(power_rows(old, 100.0))
    (folder / "summary_power_own.csv").write_text(power_rows(own, 300.0))
    trace = read_train_trace(folder / "summary_train.csv")
    powers = [read_power_trace(folder / f"summary_power_{gpu}.csv") for gpu in ("old", "own")]
    problems = problems_of(trace, powers, gpus=["own"], workloads=[WORKLOAD])
    (problem,) = in_phases_of_traces(problems, changes, trace, powers)
    return problem


OLD, OWN = {16: 30.0, 32: 20.0, 64: 8.0}, {16: 4.0, 32: 10.0, 64: 20.0}


@pytest.fixture
def moved(tmp_path: Path) -> BatchSizeProblem:
    """64 is the cheapest on the old GPU (7 epochs of 8 s), and 16 on its own one (9 of 4 s)."""
    return changed(tmp_path, MOVED, old=OLD, own=OWN)


@pytest.fixture
def renewed(tmp_path: Path) -> BatchSizeProblem:
    """Trainings take twice as many epochs from recurrence 5 on."""
    return changed(tmp_path, RENEWED, old=OLD, own=OWN)


def test_changes_are_read_as_they_are_written() -> None:
    assert parse_changes() == Changes()
    assert parse_changes(move_from="v100@30", new_version=" 1e-2@2 ") == Changes(
        move=Move(gpu="v100", start=30), new_version=NewVersion(target_metric=0.01, start=2)
    )
    assert parse_changes(new_version="-0.5@7").new_version == NewVersion(target_metric=-0.5, start=7)


@pytest.mark.parametrize("text", ["v100", "@30", "v100@", "v100@soon", "v100@-3", "v100@3.5"])
def test_a_move_that_is_not_understood_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSimulation, match=r"is not understood; an example is v100@30"):
        parse_changes(move_from=text)


@pytest.mark.parametrize("text", ["high@30", "nan@30", "inf@30"])
def test_a_target_metric_that_is_no_number_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSimulation, match=rf"a finite number, its target metric, as in 0.65@30; got '{text[:3]}"):
        parse_changes(new_version=text)


@pytest.mark.parametrize("start", [0, 1])
def test_something_must_come_before_a_change(start: int) -> None:
    with pytest.raises(InvalidSimulation, match=f"must begin at recurrence 2 or later, got {start}"):
        parse_changes(move_from=f"v100@{start}")


def test_prices_are_those_of_the_gpu_of_the_recurrence(moved: BatchSizeProblem) -> None:
    assert [moved.at(number).gpu for number in (1, 4, 5, 9)] == ["old", "old", "own", "own"]
    world = World(problem=moved, seed=1, eta_knob=0.5)
    for number, time_s, watts in ((4, 20.0, 100.0), (5, 10.0, 300.0)):
        assert world.unlimited_price(32, number).time_s == time_s
        assert world.unlimited_price(32, number).energy_j == time_s * watts
        assert world.price(32, number).time_s == 1.2 * time_s
        half = dict.fromkeys(moved.at(number).power_limits_w, 0.5)
        assert world.price_under(half, 32, number).time_s == pytest.approx(1.1 * time_s)
        assert world.cost(world.unlimited_price(32, number), number) == time_s * watts
        assert world.expected(32, number).cost == pytest.approx(5 * 1.2 * time_s * 0.75 * watts)
    assert world.epochs_to_target(32, 1, 4) == world.epochs_to_target(32, 1, 5) == 5


def test_the_oracle_and_the_default_go_by_the_gpu_of_the_recurrence(moved: BatchSizeProblem) -> None:
    run = simulate(moved, recurrences=8, seed=1)
    assert run.oracle.batch_sizes == (64,) * 4 + (16,) * 4
    assert run.oracle.mean_costs == pytest.approx((7 * 1.2 * 8 * 75,) * 4 + (9 * 1.2 * 4 * 225,) * 4)
    assert run.default is not None
    assert run.default.mean_times_s == pytest.approx((7 * 8.0,) * 4 + (7 * 20.0,) * 4)


@pytest.mark.parametrize("policy", own_policies())
def test_a_trial_names_the_gpu_that_it_runs_on_so_limits_are_measured_on_each(
    moved: BatchSizeProblem, policy: str
) -> None:
    run = simulate(moved, {"policy": policy}, recurrences=40, seed=1)
    profiled = [(moved.at(trial.recurrence).gpu, trial.batch_size) for trial in run.trials if trial.is_profiling]
    ran = {(moved.at(trial.recurrence).gpu, trial.batch_size) for trial in run.trials if trial.epochs > 1}
    assert sorted(profiled) == sorted(ran), "each once, as soon as a trial was evaluated and goes on"
    assert {gpu for gpu, _ in ran} == {"old", "own"}
    assert {moved.at(number).hardware.describe() for number in (4, 5)} == {
        "1 x old (100 W, energy nvml_counter)",
        "1 x own (300 W, energy nvml_counter)",
    }


def test_what_the_policy_knows_in_the_end_is_of_the_gpu_in_the_end(moved: BatchSizeProblem) -> None:
    run = simulate(moved, {"policy": "curve"}, recurrences=40, seed=1)
    (known,) = {known.batch_size for known in run.best_known[30:]}
    assert run.expected[known].cost == pytest.approx(run.mean_costs[known], rel=0.1)
    assert run.mean_costs[16] == pytest.approx(9 * 1.2 * 4 * 225)


def test_a_batch_size_that_was_not_measured_does_not_fit_if_larger_ones_were_not_either(tmp_path: Path) -> None:
    problem = changed(tmp_path, MOVED, old={16: 30.0, 64: 8.0, 128: 1.0}, own={8: 1.0, 16: 4.0, 32: 9.0, 64: 9.0})
    assert problem.batch_sizes == (16, 64, 128), "8 and 32 would fit on the old GPU, but nothing says what they cost"
    assert [problem.at(number).infeasible for number in (4, 5)] == [frozenset(), frozenset({128})]
    assert problem.runs[128] == problem.at(1).runs[128] == (6,)
    run = simulate(problem, {"policy": "pruning_thompson"}, recurrences=12, seed=1)
    assert run.oracle.batch_sizes == (128,) * 4 + (16,) * 8
    ended = {(trial.recurrence >= 5, trial.outcome) for trial in run.trials if trial.batch_size == 128}
    assert ended == {(False, Outcome.CONVERGED), (True, Outcome.INFEASIBLE)}
    assert not any(trial.is_profiling or trial.cost for trial in run.trials if trial.outcome is Outcome.INFEASIBLE)


def test_the_default_fits_on_both_gpus(tmp_path: Path) -> None:
    assert changed(tmp_path, MOVED, old={16: 1.0, 32: 1.0, 64: 1.0}, own={16: 1.0, 32: 1.0}).default_batch_size == 32
    assert changed(tmp_path, MOVED, old={16: 1.0, 32: 1.0}, own={16: 1.0, 32: 1.0, 64: 1.0}).default_batch_size == 32


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"move_from": "own@5"}, "shapes/own cannot move from own, its own GPU: expected another one"),
        ({"move_from": "new@5"}, "no power trace of GPU new to move from; there is old, own"),
        ({"new_version": "0.9@5"}, "has target metric 0.9 from the beginning: expected another one"),
        ({"new_version": "0.97@5"}, "says nothing of target metric 0.97 for shapes tiny sgd; it has 0.9, 0.95"),
    ],
)
def test_a_change_to_what_is_not_known_is_refused(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSimulation, match=said):
        changed(tmp_path, parse_changes(**changes), old=OLD, own=OWN)


def test_gpus_without_a_common_batch_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidSimulation, match="shapes/own was measured with other batch sizes than on old: 64 and 16"
    ):
        changed(tmp_path, MOVED, old={16: 1.0}, own={64: 1.0})


@pytest.mark.parametrize("policy", own_policies())
def test_a_new_version_has_another_target_and_takes_other_epochs(renewed: BatchSizeProblem, policy: str) -> None:
    run = simulate(renewed, {"policy": policy}, recurrences=12, seed=1)
    for trial in run.trials:
        if trial.outcome is Outcome.CONVERGED:
            assert trial.epochs == EPOCHS[trial.batch_size] * (2 if trial.recurrence >= 5 else 1)
    cost = 9 * 1.2 * 4 * 225
    assert run.oracle.mean_costs == pytest.approx((cost,) * 4 + (2 * cost,) * 8)


def test_a_new_version_is_registered_and_the_old_one_is_resumed_with_its_limit() -> None:
    hardware = make({16: (5,)}).hardware
    job = SimulatedJob(
        {"batch_sizes": (16,), "default_batch_size": 16, "target_metric": 0.9, "max_epochs": 50, "policy": "curve"}
    )
    job.register({"target_metric": 0.95, "max_epochs": 99}, 1.0)
    begun = job.begin("second", hardware, 2.0)
    assert (begun.spec.target_metric, begun.spec.max_epochs) == (0.95, 99)
    job.register({"target_metric": 0.9}, 3.0)
    begun = job.begin("first", hardware, 4.0)
    assert (begun.spec.target_metric, begun.spec.max_epochs) == (0.9, 50)
    assert job.best_known(0.95, hardware).expected_cost is None


def begun_late(run: Run, start: int) -> list[int]:
    """Recurrences before ``start`` one of whose trials began after a later recurrence had begun."""
    first = min(trial.began_s for trial in run.trials if trial.recurrence >= start)
    return [trial.recurrence for trial in run.trials if trial.recurrence < start and trial.began_s > first]


@pytest.mark.parametrize("policy", own_policies())
def test_recurrences_that_overlap_stay_on_their_gpu_and_in_their_version(tmp_path: Path, policy: str) -> None:
    problem = changed(tmp_path, parse_changes(move_from="old@10", new_version="0.95@10"), old=OLD, own=OWN)
    runs = [
        simulate(problem, {"policy": policy}, recurrences=20, seed=seed, overlap=4, failure_rate=0.4)
        for seed in range(4)
    ]
    assert any(begun_late(run, 10) for run in runs), (
        "a trial that is begun again after the change is what this is about"
    )
    for run in runs:
        world = World(problem=problem, seed=run.seed, eta_knob=0.5)
        for trial in run.trials:
            if not trial.is_profiling:
                price = world.cost(world.price(trial.batch_size, trial.recurrence), trial.recurrence)
                assert trial.cost == pytest.approx(trial.epochs * price)
            if trial.outcome is Outcome.CONVERGED:
                assert trial.epochs == EPOCHS[trial.batch_size] * (2 if trial.recurrence >= 10 else 1)


def test_both_changes_make_three_phases_and_together_two(tmp_path: Path) -> None:
    def phases(changes: Changes) -> dict[int, tuple[str, float]]:
        problem = changed(tmp_path, changes, old=OLD, own=OWN)
        return {start: (part.gpu, part.workload.target_metric) for start, part in problem.phases.items()}

    assert phases(BOTH) == {1: ("old", 0.9), 5: ("own", 0.9), 9: ("own", 0.95)}
    assert phases(parse_changes(move_from="old@9", new_version="0.95@5")) == {
        1: ("old", 0.9),
        5: ("old", 0.95),
        9: ("own", 0.95),
    }
    assert phases(parse_changes(move_from="old@7", new_version="0.95@7")) == {1: ("old", 0.9), 7: ("own", 0.95)}


@pytest.mark.parametrize("policy", own_policies())
def test_changes_go_together_with_everything_else_and_the_same_arguments_give_the_same_run(
    tmp_path: Path, policy: str
) -> None:
    problem = changed(tmp_path, BOTH, old=OLD, own=OWN)
    first, again = (
        simulate(
            problem,
            {"policy": policy},
            recurrences=25,
            seed=3,
            overlap=2,
            drift=parse_drift("epochs:x1.5@7,epoch-cost:+1%,optimum@12"),
            failure_rate=0.1,
            noise=parse_noise("run:0.3,epoch:0.1,node:0.2"),
        )
        for _ in range(2)
    )
    assert len(first.batch_sizes) == 25
    assert first == again


def test_the_kth_run_of_a_batch_size_is_the_same_for_every_policy_in_every_phase(tmp_path: Path) -> None:
    problem = changed(tmp_path, BOTH, old=OLD, own=OWN)
    many = {start: replace(part, runs=dict.fromkeys(part.runs, (4, 5, 6, 7))) for start, part in problem.phases.items()}
    phases = tuple(replace(phase, problem=part) for phase, part in zip(problem.earlier, many.values(), strict=False))
    varied = replace(many[9], earlier=phases)
    for policy in own_policies():
        run = simulate(varied, {"policy": policy, "early_stopping": False}, recurrences=20, seed=2)
        world, seen = World(problem=varied, seed=2, eta_knob=0.5), dict.fromkeys(varied.batch_sizes, 0)
        for trial in sorted(run.trials, key=lambda one: one.trial_number):
            seen[trial.batch_size] += 1
            assert trial.epochs == world.epochs_to_target(trial.batch_size, seen[trial.batch_size], trial.recurrence)
