"""The benchmark of decisions: what it counts is true, and it keeps seeds for choosing and for reporting apart."""

import math
from pathlib import Path

import pytest

from bso.policies.curve import hypotheses
from bso.policies.curve.memory import NAME as CURVE
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from bso.simulator import parse_noise, simulate
from bso.simulator.truths import Family, Start, made_problem
from bso.simulator.world import World
from tests.benchmarks.decisions import rows
from tests.benchmarks.decisions.__main__ import main
from tests.benchmarks.decisions.group_report import changed_of, draw, sections_of
from tests.benchmarks.decisions.groups import TRUTHS, Group, Kind, measured_groups
from tests.benchmarks.decisions.jobs import RECURRENCES, JobFigures, job_figures
from tests.benchmarks.decisions.known_noise import KNOWING, hardly_any_noise
from tests.benchmarks.decisions.markdown import cell_words
from tests.benchmarks.decisions.probed import PROBED
from tests.benchmarks.decisions.regrets import group_regrets, regrets_of_job, true_waste_of_job
from tests.benchmarks.decisions.report import POLICIES, Results, write
from tests.benchmarks.decisions.round_robin import EXPLORES, ROUND_ROBIN, round_robin
from tests.benchmarks.decisions.seeds import CHOOSING, REPORTING, MixedSeeds, seeds_for
from tests.benchmarks.decisions.worlds import CHANGED, STEP_NOISES, MadeWorld, moved, renewed, worlds_with
from tests.unit.simulator.problems import POWER, TRAIN, write_traces

WORLD = MadeWorld(family=Family.VALLEY, noise="run:0.3", start=Start.COSTLIEST)


def figures(*, world: str = "a", **known: object) -> JobFigures:
    usual: dict[str, object] = {
        "family": Family.VALLEY.value,
        "policy": CURVE,
        "seed": 1,
        "recent": 0.1,
        "believed": (0.2,) * RECURRENCES,
        "wasted": 5.0,
        "wasted_as_paid": 4.0,
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


def test_what_is_wasted_as_paid_is_above_the_best_batch_size_with_the_same_luck() -> None:
    world = MadeWorld(family=Family.VALLEY, noise="run:0.3", start=Start.CHEAPEST)
    found = job_figures(world, CURVE, 3)
    run = simulate(world.problem(3), {"policy": CURVE}, recurrences=60, seed=3, noise=parse_noise("run:0.3"))
    paid = sum(
        (mine - best) / mean
        for mine, best, mean in list(zip(run.costs, run.oracle.costs, run.oracle.mean_costs, strict=True))[:30]
    )
    assert found.wasted_as_paid == pytest.approx(paid)
    assert found.wasted_as_paid != pytest.approx(found.wasted)


def test_round_robin_takes_turns_and_then_stays_with_what_was_cheapest() -> None:
    problem = made_problem(Family.CLIFF, Start.MIDDLE, 2)
    world = World(problem=problem, seed=2, eta_knob=0.5, noise=parse_noise("run:0.3"))
    sizes, known = round_robin(world, RECURRENCES)
    fitting = [size for size in problem.batch_sizes if size not in problem.infeasible]
    assert sizes[0] == problem.default_batch_size
    assert set(sizes[: len(fitting)]) == set(fitting)
    assert set(sizes[EXPLORES:]) <= set(known[EXPLORES - 1 : 29])
    assert len(known) == RECURRENCES


def test_a_cell_has_the_mean_its_interval_and_the_worst_family_and_world() -> None:
    families = {"a": "first", "b": "second", "c": "second"}
    jobs = [
        figures(world=world, family=families[world], recent=recent, seed=seed)
        for worlds, seeds, recent in (("ab", range(50), 0.0), ("bc", range(50, 100), 0.2))
        for world in worlds
        for seed in seeds
    ]
    cell = rows.cell(jobs, rows.RECENT)
    assert cell.mean == pytest.approx(10)
    family, world = cell.worst
    assert (family.name, world.name) == ("second", "c")
    assert family.mean == pytest.approx(20 * 100 / 150)
    assert world.mean == pytest.approx(20)
    assert 6 < cell.low < 10 < cell.high < 14
    assert "; 13.3 second; 20.0 c" in cell_words(cell)


def test_a_ratio_of_wasted_trainings_is_one_of_means() -> None:
    quiet, noisy = [figures(wasted=2.0), figures(wasted=4.0)], [figures(wasted=6.0), figures(wasted=3.0)]
    found = rows.ratio(noisy, quiet, rows.WASTED)
    assert found.mean == pytest.approx(1.5)
    assert [worst.mean for worst in found.worst] == [pytest.approx(1.5)] * 2


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
    jobs = [figures(), figures(world="flat", family=Family.FLAT.value, wasted=2.0)]
    results = Results(
        purpose="choosing",
        seeds=range(2),
        noises=("no noise", "runs 0.3"),
        jobs={(noise, policy): jobs for noise in ("no noise", "runs 0.3") for policy in POLICIES},
        steps={(name, CURVE): jobs * 250 for name in STEP_NOISES},
        groups=[group_regrets(made_group(Kind.MOVED, (CURVE,)), {CURVE: [(0.0,) * 100] * 6})],
    )
    page = write(results, tmp_path / "made").read_text(encoding="utf-8")
    assert page.count("| runs 0.3 |") == page.count("| no noise |") >= 8
    assert "| all noises |" in page
    assert "| all noises but spikes |" in page
    assert "for choosing" in page
    assert all(f"| {name} |" in page for name in STEP_NOISES)
    assert "500 jobs a row, on valleys." in page
    for picture in ("believed", "regret"):
        assert f"]({picture}.png)" in page
        assert (tmp_path / f"made/{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_a_job_gets_a_target_that_is_drawn_near_its_own_one() -> None:
    targets = [change.target_metric for seed in range(200) if (change := renewed(seed).new_version) is not None]
    assert len(targets) == 200
    assert 0.79 < min(targets) < 0.82
    assert 0.94 < max(targets) < 0.96
    assert not any(0.891 < target < 0.909 for target in targets)
    assert renewed(3) == renewed(3)
    problem = MadeWorld(family=Family.VALLEY, noise="", start=Start.MIDDLE, changes=renewed).problem(3)
    assert [part.workload.target_metric for part in problem.phases.values()] == [0.9, targets[3]]
    assert list(problem.phases) == [1, CHANGED]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three GPUs, and the targets 0.8, 0.9, 0.95 and 0.99, the last of which hardly any run reaches."""
    train = TRAIN.splitlines()[0] + "\n"
    for size, epochs in ((32, (3, 4, 7, 40)), (64, (4, 6, 9, "nan"))):
        for target, needed in zip((0.8, 0.9, 0.95, 0.99), epochs, strict=True):
            train += f"shapes,tiny,{size},sgd,0.1,1,{target},{needed}\n"
    write_traces(tmp_path, train=train)
    for gpu in ("g2", "g3"):
        (tmp_path / f"summary_power_{gpu}.csv").write_text(POWER.replace(",20,", ",25,"))
    return tmp_path


@pytest.mark.parametrize(
    ("target", "renewals"),
    [
        (0.9, ["0.8 to 0.9", "0.95 to 0.9"]),
        (0.8, ["0.9 to 0.8"]),
        (0.95, ["0.9 to 0.95"]),  # the default batch size never gets to 0.99
    ],
)
def test_measured_jobs_move_between_all_gpus_and_come_from_neighbouring_targets(
    folder: Path, target: float, renewals: list[str]
) -> None:
    columns = "dataset,network,optimizer,target_metric,max_epochs,default_batch_size"
    (folder / "workloads.csv").write_text(f"{columns}\nshapes,tiny,sgd,{target},50,64\n")
    by_kind = {group.kind: group for group in measured_groups(folder)}
    moves = [f"shapes, {old} to {own}" for own in ("g1", "g2", "g3") for old in ("g1", "g2", "g3") if old != own]
    assert [world.name for world in by_kind[Kind.MOVED].worlds] == moves
    expected = [f"shapes/{gpu}, {each}" for gpu in ("g1", "g2", "g3") for each in renewals]
    assert [world.name for world in by_kind[Kind.RENEWED].worlds] == expected
    (first, *_) = by_kind[Kind.RENEWED].worlds
    assert {start: part.workload.target_metric for start, part in first.problem(1).phases.items()} == {
        1: float(renewals[0].split()[0]),
        CHANGED: target,
    }


def test_a_policy_may_know_that_there_is_no_noise_and_only_in_its_own_job() -> None:
    usual = hypotheses.HYPOTHESES
    world = MadeWorld(family=Family.VALLEY, noise="run:0.5", start=Start.MIDDLE)
    regrets = {policy: regrets_of_job(world, policy, 5, 25) for policy in (CURVE, KNOWING, CURVE)}
    assert regrets[CURVE] != regrets[KNOWING]
    assert hypotheses.HYPOTHESES is usual
    with hardly_any_noise():
        deviations = [deviation for deviation, _, _ in hypotheses.HYPOTHESES]
    assert deviations == [min(deviation for deviation, _, _ in usual)]


def test_waste_at_true_prices_is_what_a_job_shows_and_probes_are_paid_for() -> None:
    world = MadeWorld(family=Family.VALLEY, noise="run:0.3", start=Start.COSTLIEST)
    usual = true_waste_of_job(world, CURVE, 7, 40)
    assert usual[29] == pytest.approx(job_figures(world, CURVE, 7).wasted)
    probed = [true_waste_of_job(world, policy, 7, 40) for policy in PROBED]
    assert probed[0] != probed[1]
    assert all(each[0] > usual[0] for each in probed), "the first training is the same, and probes besides"


def test_jobs_that_move_probe_on_the_new_kind() -> None:
    world = MadeWorld(family=Family.VALLEY, noise="", start=Start.MIDDLE, changes=moved)
    probing = next(iter(PROBED))
    usual, probed = (regrets_of_job(world, policy, 5, CHANGED) for policy in (CURVE, probing))
    assert usual[CHANGED - 1] - usual[CHANGED - 2] != probed[CHANGED - 1] - probed[CHANGED - 2]


def test_the_page_compares_jobs_with_and_without_probes() -> None:
    policies = (CURVE, *PROBED)
    groups = [
        group_regrets(
            made_group(kind, policies, recurrences=50),
            {policy: [tuple(at * (number + 1.0) for at in range(50))] * 6 for number, policy in enumerate(policies)},
        )
        for kind in (Kind.MOVED, Kind.PROBED)
    ]
    moves, noisy = ("\n".join(sections_of([one])) for one in groups)
    assert all(policy in moves and policy in noisy for policy in PROBED)
    worst = "valley, default cheapest"
    assert f"| 20.00 (20.00 to 20.00); 20.00 {worst} | 40.00 (40.00 to 40.00); 40.00 {worst} |" in moves
    assert f"| first 50 recurrences | 49.00 (49.00 to 49.00); 49.00 {worst} |" in noisy
    assert changed_of(groups) == groups[:1]


@pytest.mark.parametrize("kind", ["moved", "probed"])
def test_groups_may_be_simulated_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BSO_TRACES", raising=False)
    worlds = worlds_with("", families=[Family.FLAT])[:1]
    chosen = Group(kind=Kind[kind.upper()], source=TRUTHS, worlds=worlds, policies=(CURVE, *PROBED), recurrences=50)
    other = made_group(Kind.QUIET, (CURVE, KNOWING))
    monkeypatch.setattr("tests.benchmarks.decisions.__main__.made_groups", lambda: (chosen, other))
    monkeypatch.setattr("tests.benchmarks.decisions.__main__.probing_groups", tuple)
    assert main(["--only", kind, "--for", "choosing", "--jobs", "1", "--traces", "1", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("## ") == 1
    assert "flat, default cheapest" in printed
    assert (next(iter(PROBED)) in printed) is (kind == "probed"), "only where somebody asks for probes"


def made_group(kind: Kind, policies: tuple[str, ...], recurrences: int = 100) -> Group:
    worlds = worlds_with("", families=[Family.VALLEY, Family.FLAT])
    return Group(kind=kind, source=TRUTHS, worlds=worlds, policies=policies, recurrences=recurrences)


def test_what_a_change_wastes_is_counted_from_it_on() -> None:
    group = made_group(Kind.MOVED, (CURVE,), recurrences=50)
    # Every job wastes 1 in each of the first 30 recurrences, and then its number / 10; there are 6 worlds of 100 jobs.
    wasted = [
        tuple(float(min(at, 30) + max(at - 30, 0) * seed / 10 * (world == 4)) for at in range(1, 51))
        for world in range(6)
        for seed in range(100)
    ]
    found = group_regrets(group, {CURVE: wasted})
    since = found.since_change(CURVE, 50)
    assert found.seeds == 100
    assert found.until(CURVE, 30).mean() == 30
    assert since.shape == (6, 100)
    cell = found.mean(since)
    assert cell.mean == pytest.approx(20 * 4.95 / 6)
    assert cell.low < cell.mean < cell.high
    (worst,) = cell.worst
    assert worst.mean == pytest.approx(20 * 4.95)
    assert worst.name == "flat, default middle"
    assert found.tail(since)[1] == pytest.approx(20 * 9.3), "all but six of six hundred waste no more"
    by_recurrence = found.since_change_by_recurrence(CURVE)
    assert by_recurrence[29] == 0
    assert by_recurrence[49] == pytest.approx(cell.mean)


def test_the_page_shows_what_changes_waste_and_what_a_policy_gains_that_knows_the_noise(tmp_path: Path) -> None:
    kinds = {
        Kind.MOVED: (CURVE, PRUNING_THOMPSON),
        Kind.RENEWED: (CURVE, PRUNING_THOMPSON),
        Kind.QUIET: (CURVE, KNOWING),
    }
    groups = []
    for kind, policies in kinds.items():
        group = made_group(kind, policies)
        wasted = {policy: [tuple(map(float, range(100)))] * 6 * 2 for policy in policies}
        groups.append(group_regrets(group, wasted))
    page = "\n".join(sections_of(groups))
    all_alike = "20.0 (20.0 to 20.0); 20.0 valley, default cheapest"
    first = f"| made truths (6 made problems, 2 jobs each) | mean, recurrences 31 to 50 | {all_alike} | {all_alike} |"
    assert page.count(first) == 2
    assert page.count("| mean, recurrences 31 to 100 | 70.0 ") == 2
    assert page.count("| 99 % of the jobs waste at most, recurrences 31 to 100 | 70.0 ") == 2
    assert page.count("the first 20 recurrences of a job that never changes | 19.0 ") == 2
    nothing = "0.00 (0.00 to 0.00); 0.00 valley, default cheapest"
    assert page.count(f" | {nothing} |") == 2
    draw(groups, tmp_path / "regret.png")
    assert (tmp_path / "regret.png").read_bytes().startswith(b"\x89PNG")
    assert len(changed_of(groups)) == 2
