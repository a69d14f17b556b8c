"""``bso simulate``: policies on traces, from the command line."""

import contextlib
import csv
import os
import select
from pathlib import Path

import pytest

from tests.acceptance.conftest import Command
from tests.unit.simulator.problems import POWER, write_known_traces, write_traces

JOB = ("--dataset", "shapes")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_known_traces(tmp_path)


def test_a_job_is_simulated_and_shown_as_json_csv_and_pictures(bso: Command, traces: Path, tmp_path: Path) -> None:
    found = bso.json(
        *("simulate", "single", traces, *JOB, "--seeds", 2, "-n", 21, "--csv", tmp_path / "trials.csv"),
        *("--plots", tmp_path / "plots"),
    )
    (problem,) = found["problems"]
    assert (problem["name"], problem["default_batch_size"], problem["recurrences"]) == ("shapes/g1", 64, 21)
    for part in (problem, found["total"]):
        assert part["regret"].keys() == part["wrong_share"].keys() == {"20", "full"}
        assert part["regret"]["full"].keys() == {"mean", "ci95"}
        assert part["worst_run"] >= part["regret"]["full"]["mean"]
    with (tmp_path / "trials.csv").open(newline="") as file:
        trials = list(csv.DictReader(file))
    assert {trial["seed"] for trial in trials} == {"0", "1"}
    assert sum(trial["outcome"] == "converged" for trial in trials) == 2 * 21
    assert problem["tries_per_recurrence"]["mean"] == len(trials) / (2 * 21)
    for name in ("regret", "choices", "costs"):
        assert (tmp_path / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_two_policies_are_compared(bso: Command, traces: Path, tmp_path: Path) -> None:
    found = bso.json(
        *("simulate", "single", traces, *JOB, "--seeds", 2, "-n", 20, "--processes", 1),
        *("--against", "pruning_thompson"),
        *("--plots", tmp_path / "plots"),
    )
    assert (found["policy"], found["against"]["policy"]) == ("curve", "pruning_thompson")
    means = [part["total"]["regret"]["full"]["mean"] for part in (found, found["against"])]
    assert found["difference"]["regret"]["full"]["mean"] == pytest.approx(means[0] - means[1])
    assert len(list((tmp_path / "plots").glob("*-curve.png"))) == 3


@pytest.mark.slow
def test_problems_are_drawn_where_there_are_no_traces(bso: Command) -> None:
    made = ("simulate", "single", "--truths", 1, "--seeds", 2, "-n", 20, "--dataset")
    quiet, noisy = bso.json(*made, "cliff-middle"), bso.json(*made, "cliff-middle", "--noise", "run:0.5,spikes:0.1x3")
    assert [problem["name"] for problem in quiet["problems"]] == ["cliff-middle/made"]
    assert quiet["total"]["regret"] != noisy["total"]["regret"]
    assert "there are falling-cheapest, " in bso(*made, "hill").stderr.replace("\n", " ").replace("│", "")
    assert "name a folder of traces" in bso("simulate", "single").stderr


@pytest.mark.slow
def test_a_job_moves_to_another_gpu_and_gets_a_new_version(bso: Command, traces: Path, tmp_path: Path) -> None:
    (traces / "summary_power_g2.csv").write_text(POWER.replace(",10,", ",2,"))
    found = bso.json(
        *("simulate", "single", traces, *JOB, "--gpu", "g1", "--move-from", "g2@10", "--new-version", "0.8@15"),
        *("--seeds", 2, "-n", 21, "--overlap", 2, "--drift", "epochs:x2@18", "--noise", "run:0.1"),
        *("--failure-rate", 0.05, "--against", "pruning_thompson", "--csv", tmp_path / "trials.csv"),
        *("--plots", tmp_path / "plots"),
    )
    for part in (found, found["against"]):
        assert [
            (phase["recurrence"], phase["gpu"], phase["target_metric"]) for phase in part["problems"][0]["phases"]
        ] == [
            (1, "g2", 0.9),
            (10, "g1", 0.9),
            (15, "g1", 0.8),
        ]
    with (tmp_path / "trials.csv").open(newline="") as file:
        ran = {(int(trial["recurrence"]) >= 10, trial["gpu"]) for trial in csv.DictReader(file)}
    assert ran == {(False, "g2"), (True, "g1")}
    assert len(list((tmp_path / "plots").glob("*.png"))) == 6
    said = bso.refused("simulate", "single", traces, *JOB, "--move-from", "g2@10")
    assert "shapes/g2 cannot move from g2, its own GPU: expected another one" in said


@pytest.mark.slow
def test_a_made_job_moves_to_another_gpu_and_gets_a_new_version(bso: Command) -> None:
    made = ("simulate", "single", "--truths", 1, "--dataset", "valley-middle", "--seeds", 2, "-n", 20)
    usual, moved, renewed = (
        bso.json(*made, *changes) for changes in ((), ("--move-from", "made-2@10"), ("--new-version", "0.95@10"))
    )
    assert [len(each["problems"][0]["phases"]) for each in (usual, moved, renewed)] == [1, 2, 2]
    assert [each["problems"][0]["target_metric"] for each in (usual, moved, renewed)] == [0.9, 0.9, 0.95]
    assert len({each["total"]["regret"]["full"]["mean"] for each in (usual, moved, renewed)}) == 3
    assert "generated problems move from GPU made-2, got v100" in bso.refused(*made, "--move-from", "v100@10")


def test_a_malformed_trace_is_refused_with_its_line(bso: Command, traces: Path) -> None:
    (traces / "summary_train.csv").write_text("dataset\nshapes\n")
    assert "summary_train.csv, line 1: expected the columns" in bso.refused("simulate", "single", traces, *JOB)


def test_ctrl_c_ends_all_processes_without_a_traceback(bso: Command, traces: Path) -> None:
    process, terminal = bso.start_in_terminal(
        *("simulate", "single", traces, *JOB, "--seeds", 2000, "-n", 100, "--processes", 2)
    )
    said = b""
    while b"seed" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while process.poll() is None:
        if select.select([terminal], [], [], 0.1)[0]:
            with contextlib.suppress(OSError):  # nobody has the terminal open any more
                said += os.read(terminal, 1000)
    os.close(terminal)
    assert process.returncode == 130
    assert b"Traceback" not in said


def test_a_cluster_trace_is_made_and_simulated(bso: Command, tmp_path: Path) -> None:
    train = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch\n"
    train += "".join(f"squad,bert_base_uncased,{size},adamw,0.1,1,84.0,4\n" for size in (16, 32))
    power = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"
    power += "".join(f"squad,bert_base_uncased,{size},adamw,200,{size},150\n" for size in (16, 32))
    traces = write_traces(tmp_path, train=train, power=power)
    printed = bso.ok("simulate", "trace", traces, "--groups", 2, "--recurrences", 8, "--seed", 3)
    assert printed.startswith("group,start_time,end_time,dataset,runtime_ratio\ngroup-1,0.000,")
    cluster = tmp_path / "cluster.csv.xz"
    bso.ok("simulate", "trace", traces, "--groups", 2, "--recurrences", 8, "--seed", 3, "--output", cluster)
    found = bso.json("simulate", "cluster", traces, cluster, "--seeds", 2)
    assert [problem["name"] for problem in found["problems"]] == ["group-1 squad/g1", "group-2 squad/g1"]
    assert sum(problem["recurrences"] for problem in found["problems"]) == len(printed.splitlines()) - 1
