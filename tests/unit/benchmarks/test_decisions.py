"""The benchmark of decisions: what it counts is true, and it keeps seeds for choosing and for reporting apart."""

import math
from pathlib import Path

import pytest

from bso.domain.job_spec import CURVE, PRUNING_THOMPSON
from bso.simulator import parse_noise
from bso.simulator.truths import Family, Start, made_problem
from bso.simulator.world import World
from tests.benchmarks.decisions import rows
from tests.benchmarks.decisions.__main__ import main
from tests.benchmarks.decisions.jobs import RECURRENCES, JobFigures, job_figures
from tests.benchmarks.decisions.report import POLICIES, Results, write
from tests.benchmarks.decisions.round_robin import EXPLORES, ROUND_ROBIN, round_robin
from tests.benchmarks.decisions.seeds import CHOOSING, REPORTING, MixedSeeds, seeds_for
from tests.benchmarks.decisions.worlds import STEP_NOISES, MadeWorld

WORLD = MadeWorld(family=Family.VALLEY, noise="run:0.3", start=Start.COSTLIEST)


def figures(*, world: str = "a", **known: object) -> JobFigures:
    usual: dict[str, object] = {
        "policy": CURVE,
        "seed": 1,
        "is_flat": False,
        "recent": 0.1,
        "believed": (0.2,) * RECURRENCES,
        "wasted": 5.0,
        "over_default": 0.0,
        "expected": (1.0,) * RECURRENCES,
        "trials": 60,
        "change_points": 0,
    }
    return JobFigures(world=world, **(usual | known))  # type: ignore[arg-type]  # by name


def test_pools_for_choosing_and_for_reporting_have_no_seed_in_common() -> None:
    pools = [*CHOOSING, *REPORTING]
    assert sum(map(len, pools)) == len({seed for pool in pools for seed in pool})


@pytest.mark.parametrize(("purpose", "first"), [("reporting", 0), ("choosing", 99_990), ("reporting", 199_990)])
def test_seeds_of_another_pool_or_of_two_are_refused(purpose: str, first: int, tmp_path: Path) -> None:
    with pytest.raises(MixedSeeds, match="not all in one pool"):
        seeds_for(purpose, count=20, first=first)
    assert main(["--for", purpose, "--first-seed", str(first), "--jobs", "20", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("policy", [CURVE, PRUNING_THOMPSON, ROUND_ROBIN])
def test_a_job_is_judged_by_true_costs(policy: str) -> None:
    found = job_figures(WORLD, policy, 7)
    problem = made_problem(Family.VALLEY, Start.COSTLIEST, 7)
    world = World(problem=problem, seed=7, eta_knob=0.5)
    excesses = {size: world.expected(size, 1).cost for size in problem.batch_sizes}
    least = min(excesses.values())
    possible = {round(cost / least - 1.0, 9) for cost in excesses.values()}
    assert {round(each, 9) for each in found.believed} <= possible
    assert 0.0 <= found.recent <= max(possible)
    default = excesses[problem.default_batch_size]
    assert found.over_default == pytest.approx((1 + found.believed[-1]) * least / default - 1)


def test_what_is_wasted_does_not_depend_on_the_noise_where_the_choices_do_not() -> None:
    quiet = job_figures(MadeWorld(family=Family.FLAT, noise="", start=Start.CHEAPEST), CURVE, 3)
    spiked = job_figures(MadeWorld(family=Family.FLAT, noise="spikes:1x3", start=Start.CHEAPEST), CURVE, 3)
    assert spiked.believed == pytest.approx(quiet.believed)
    assert spiked.wasted == pytest.approx(quiet.wasted)


def test_round_robin_takes_turns_and_then_stays_with_what_was_cheapest() -> None:
    problem = made_problem(Family.CLIFF, Start.MIDDLE, 2)
    world = World(problem=problem, seed=2, eta_knob=0.5, noise=parse_noise("run:0.3"))
    sizes, known = round_robin(world, RECURRENCES)
    fitting = [size for size in problem.batch_sizes if size not in problem.infeasible]
    assert sizes[0] == problem.default_batch_size
    assert set(sizes[: len(fitting)]) == set(fitting)
    assert set(sizes[EXPLORES:]) <= set(known[EXPLORES - 1 : 29])
    assert len(known) == RECURRENCES


def test_a_cell_has_the_mean_its_interval_and_the_worst_world() -> None:
    lucky = [figures(world=world, recent=0.0, seed=seed) for world in "ab" for seed in range(50)]
    jobs = lucky + [figures(world=world, recent=0.2, seed=seed) for world in "bc" for seed in range(50, 100)]
    cell = rows.cell(jobs, rows.RECENT)
    assert cell.mean == pytest.approx(10)
    assert cell.worst == pytest.approx(20)
    assert cell.worst_world == "c"
    assert 6 < cell.low < 10 < cell.high < 14


def test_a_ratio_of_wasted_trainings_is_one_of_means() -> None:
    quiet, noisy = [figures(wasted=2.0), figures(wasted=4.0)], [figures(wasted=6.0), figures(wasted=3.0)]
    assert rows.ratio_of_wasted(noisy, quiet).mean == pytest.approx(1.5)


def test_only_worlds_that_are_costlier_beyond_chance_are_named() -> None:
    luck = [0.01 * (-1) ** number for number in range(100)]
    mine = [figures(world="costlier", recent=0.1 + each) for each in luck] + [figures(world="same", recent=0.1)] * 100
    other = [figures(world="costlier", recent=0.05)] * 100 + [figures(world="same", recent=0.1 + each) for each in luck]
    (found,) = rows.costlier_worlds({"noisy": (mine, other)})
    assert found.world == "costlier"
    assert found.difference == pytest.approx(5.0)
    assert rows.costlier_worlds({"noisy": (other, mine)}) == ()


def test_a_step_is_followed_when_half_of_it_is_expected() -> None:
    late = tuple(1.0 if number <= 30 or number >= 36 else 1 / 1.5 for number in range(1, RECURRENCES + 1))
    never = (1.0,) * 30 + (1 / 1.5,) * 30
    assert rows.followed_within([figures(expected=late)], step=1.5, since=31) == 6
    assert rows.followed_within([figures(expected=never)], step=1.5, since=31) is None
    unknown = (math.nan,) * RECURRENCES
    assert rows.followed_within([figures(expected=unknown)], step=1.5, since=31) is None


def test_the_page_has_every_row_for_every_policy(tmp_path: Path) -> None:
    jobs = [figures(), figures(world="flat", is_flat=True, wasted=2.0)]
    results = Results(
        purpose="choosing",
        seeds=range(2),
        noises=("no noise", "runs 0.3"),
        jobs={(noise, policy): jobs for noise in ("no noise", "runs 0.3") for policy in POLICIES},
        steps={(name, policy): jobs for name in STEP_NOISES for policy in POLICIES},
    )
    page = write(results, tmp_path / "made").read_text(encoding="utf-8")
    assert page.count("| runs 0.3 |") == page.count("| no noise |") >= 8
    assert "for choosing" in page
    assert all(f"| {name} |" in page for name in STEP_NOISES)
    assert (tmp_path / "made/believed.png").read_bytes().startswith(b"\x89PNG")
