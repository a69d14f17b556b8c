"""``bso simulate``: what the options say, what is refused, and the words and tables."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bso.simulator.intervals import MeanEstimate
from bso.simulator.summary import PairedDifference
from bso_cli.main import app
from bso_cli.simulating.printed import sentence_of
from tests.unit.simulator.problems import POWER, write_known_traces

JOB = ("--dataset", "shapes")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_known_traces(tmp_path)


def run(*arguments: object) -> Any:
    return invoke(*arguments, "--processes", "1")


def invoke(*arguments: object, traces: Path | None = None) -> Any:
    """Run a command, the folder of traces being named in the environment."""
    environ = {"COLUMNS": "200", "BSO_TRACES": None if traces is None else str(traces)}
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)], env=environ)


@pytest.fixture
def two_gpus(traces: Path) -> Path:
    """On the second GPU epochs take twice as long."""
    (traces / "summary_power_g2.csv").write_text(POWER.replace(",20,", ",40,").replace(",10,", ",20,"))
    return traces


def regret(traces: Path, *options: object) -> float:
    result = run("single", traces, *JOB, "--seeds", 1, "-n", 20, "--json", *options)
    assert result.exit_code == 0, result.output
    return float(json.loads(result.stdout)["total"]["regret"]["full"]["mean"])


def test_options_change_what_is_simulated(traces: Path) -> None:
    plain = regret(traces)
    assert regret(traces) == plain
    for options in (
        ("--beta", 0, "--overlap", 2),
        ("--eta", 1),
        ("--failure-rate", 0.2),
        ("--drift", "epochs:x2@10,optimum@15"),
        ("--policy", "pruning_thompson"),
        ("--spec", "max_attempts=1"),
    ):
        assert regret(traces, *options) != plain, options


def test_the_table_has_a_line_for_each_problem_and_one_for_all(traces: Path) -> None:
    said = run("single", traces, *JOB, "--seeds", 2).stdout
    assert "curve: 1 problem, 2 seeds" in said
    assert "shapes/g1" in said
    assert "\nall" in said


def test_a_difference_is_printed_with_its_sign() -> None:
    estimates = {"20": MeanEstimate(mean=-4.25, ci95=0.5), "full": MeanEstimate(mean=1.0, ci95=None)}
    said = sentence_of(PairedDifference(policy="a", against="b", regret=estimates, cost_over_oracle=estimates))
    assert said == "a minus b, with the same luck: regret -4.2 ± 0.5 @20, +1.0 @full"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*JOB, "--drift", "twice"), "drift 'twice' is not understood"),
        (("--dataset", "faces"), "holds no run of dataset faces; it holds shapes"),
        ((*JOB, "--policy", "magic"), "policy 'magic' is not installed here, only curve, pruning_thompson"),
        ((*JOB, "--gpu", "h1"), "no power trace of GPU h1; there is g1"),
        ((*JOB, "--beta", "0.5"), "--beta 0.5: expected 1 or more, or 0 to never stop early"),
        ((*JOB, "--failure-rate", "1"), "the failure rate must be from 0 to below 1"),
        ((*JOB, "--move-from", "g1@5"), "shapes/g1 cannot move from g1, its own GPU: expected another one"),
        ((*JOB, "--move-from", "g9@5"), "there is no power trace of GPU g9 to move from; there is g1"),
        ((*JOB, "--move-from", "g9"), "move 'g9' is not understood; an example is v100@30"),
        ((*JOB, "--new-version", "0.95@5"), "says nothing of target metric 0.95 for shapes tiny sgd; it has 0.8, 0.9"),
        ((*JOB, "-n", "6", "--new-version", "0.8@7"), "comes at recurrence 7, but there are only 6"),
        ((*JOB, "-n", "5", "--drift", "epochs:x2@500"), "at recurrence 500, but there are only 5 recurrences"),
        ((*JOB, "-n", "5", "--drift", "epochs:+1%@5"), "at recurrence 6, but there are only 5 recurrences"),
        ((*JOB, "--new-version", "0.8@1"), "new version '0.8@1' must begin at recurrence 2 or later, got 1"),
    ],
)
def test_what_cannot_be_simulated_is_said_in_a_sentence(traces: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run("single", traces, *arguments)
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


def test_a_dataset_whose_target_is_not_known_is_refused(traces: Path) -> None:
    (traces / "workloads.csv").unlink()
    result = run("single", traces, *JOB)
    assert result.exit_code == 1
    said = "".join(result.stderr.split())
    assert f"describeitin{traces / 'workloads.csv'}" in said


def test_files_that_are_missing_or_malformed_are_named(traces: Path) -> None:
    assert "cannot use" in run("single", traces / "nowhere").stderr
    (traces / "summary_power_g1.csv").unlink()
    assert "summary_power_GPU.csv" in "".join(run("single", traces, *JOB).stderr.split())
    (traces / "summary_train.csv").write_text("dataset\nshapes\n")
    assert "summary_train.csv, line 1: expected the columns" in " ".join(run("single", traces, *JOB).stderr.split())


def test_workloads_that_a_file_describes_run_on_a_cluster_and_what_is_left_out_is_named(
    traces: Path, tmp_path: Path
) -> None:
    with (traces / "summary_train.csv").open("a") as file:
        file.write("faces,tiny,32,sgd,0.1,1,0.9,5\n")
    cluster = tmp_path / "cluster.csv"
    made = invoke("trace", traces, "--groups", 2, "-n", 5, "--output", cluster)
    assert "Left out, since their targets are not known: faces tiny sgd. Describe" in " ".join(made.stderr.split())
    found = json.loads(run("cluster", traces, cluster, "--seeds", 1, "--json").stdout)
    assert [problem["dataset"] for problem in found["problems"]] == ["shapes", "shapes"]
    assert "Left out" not in run("single", traces, *JOB, "--seeds", 1, "-n", 2).stderr


def test_a_job_that_changes_has_its_phases_in_json_and_in_each_line_of_the_csv_file(
    two_gpus: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trials.csv"
    changes = ("--gpu", "g1", "--move-from", "g2@5", "--new-version", "0.8@9", "--csv", path)
    found = json.loads(run("single", two_gpus, *JOB, "--seeds", 1, "-n", 12, "--json", *changes).stdout)
    (problem,) = found["problems"]
    assert (problem["name"], problem["gpu"], problem["target_metric"]) == ("shapes/g1", "g1", 0.8)
    phases = [(phase["recurrence"], phase["gpu"], phase["target_metric"]) for phase in problem["phases"]]
    assert phases == [(1, "g2", 0.9), (5, "g1", 0.9), (9, "g1", 0.8)]
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line in lines:
        start = max(start for start, _, _ in phases if start <= int(line["recurrence"]))
        assert (start, line["gpu"], float(line["target_metric"])) in phases


def test_a_move_and_a_new_version_change_what_is_simulated(two_gpus: Path) -> None:
    usual = regret(two_gpus, "--gpu", "g1")
    assert regret(two_gpus, "--gpu", "g1", "--move-from", "g2@10") != usual
    assert regret(two_gpus, "--gpu", "g1", "--new-version", "0.8@10") != usual
    assert regret(two_gpus, "--gpu", "g1", "--move-from", "g2@15", "--new-version", "0.8@15") != usual


def test_jobs_of_a_cluster_may_move(two_gpus: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.csv"
    assert invoke("trace", two_gpus, "--groups", 2, "-n", 8, "--output", cluster).exit_code == 0
    moved = run("cluster", two_gpus, cluster, "--gpu", "g1", "--move-from", "g2@3", "--seeds", 1, "--json")
    assert [len(problem["phases"]) for problem in json.loads(moved.stdout)["problems"]] == [2, 2]


def test_a_move_after_the_last_recurrence_is_refused(two_gpus: Path) -> None:
    result = run("single", two_gpus, *JOB, "--gpu", "g1", "--move-from", "g2@100", "-n", 6)
    assert result.exit_code == 1
    assert "comes at recurrence 100, but there are only 6 recurrences" in " ".join(result.stderr.split())


def test_that_a_change_comes_after_the_end_of_some_jobs_is_said(traces: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.csv"
    lines = [f"{group},{second},shapes,1" for group, times in (("short", 3), ("long", 6)) for second in range(times)]
    cluster.write_text("\n".join(["group,start_time,dataset,runtime_ratio", *lines]))
    said = run("cluster", traces, cluster, "--seeds", 1, "--drift", "epochs:x2@5")
    assert said.exit_code == 0, said.output
    assert "1 of 2 jobs end before recurrence 5: its change does not come there" in " ".join(said.stderr.split())
    assert "does not come" not in run("cluster", traces, cluster, "--seeds", 1, "--drift", "epochs:x2@3").stderr


def test_the_folder_of_traces_may_stand_in_the_environment(traces: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.csv"
    assert invoke("trace", "--groups", 2, "-n", 5, "--output", cluster, traces=traces).exit_code == 0
    asked = ("cluster", cluster, "--seeds", 1, "--processes", 1, "--json")
    found = invoke(*asked, traces=traces)
    assert found.exit_code == 0, found.output
    assert [problem["dataset"] for problem in json.loads(found.stdout)["problems"]] == ["shapes", "shapes"]
    assert invoke("cluster", traces, *asked[1:], traces=tmp_path / "elsewhere").stdout == found.stdout
    assert invoke("cluster", traces=traces).exit_code == 2
    nowhere = invoke(*asked)
    assert nowhere.exit_code == 2
    assert "expected a folder of traces (or BSO_TRACES) and a cluster trace" in " ".join(nowhere.stderr.split())


def test_a_simulation_that_is_refused_leaves_no_new_file_and_keeps_an_old_one(traces: Path, tmp_path: Path) -> None:
    new, old = tmp_path / "new.csv", tmp_path / "old.csv"
    old.write_text("kept")
    for path in (new, old):
        assert run("single", traces, *JOB, "--policy", "magic", "--csv", path).exit_code == 1
    assert not new.exists()
    assert old.read_text() == "kept"


def test_where_results_cannot_be_written_nothing_is_simulated(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (("--csv", tmp_path / "nowhere" / "trials.csv"), ("--plots", tmp_path / "file" / "plots")):
        result = run("single", traces, *JOB, "--policy", "magic", *place)
        assert result.exit_code == 1
        assert "cannot use" in result.stderr, "the policy would have been refused by the simulation"


def test_epochs_that_no_calendar_holds_are_said_in_a_sentence(traces: Path) -> None:
    power = traces / "summary_power_g1.csv"
    power.write_text(power.read_text().replace(",20,", ",1e300,").replace(",12,", ",1e290,"))
    result = run("single", traces, *JOB, "--seeds", 1)
    assert result.exit_code == 1
    assert "which no calendar holds: epochs take too long" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        (*JOB, "--spec", "window_size"),
        (*JOB, "--eta", "2"),
        ("--new-version", "0.8@5"),
        (*JOB, "--dataset", "squad", "--new-version", "0.8@5"),
    ],
)
def test_wrong_usage_exits_with_2(traces: Path, arguments: tuple[str, ...]) -> None:
    assert run("single", traces, *arguments).exit_code == 2
