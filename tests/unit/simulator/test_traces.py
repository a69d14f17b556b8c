"""Trace files are read as they are, or refused with the line that is wrong."""

import lzma
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bso.simulator import (
    KNOWN_WORKLOADS,
    InvalidSimulation,
    InvalidTrace,
    Workload,
    make_problem,
    read_power_trace,
    read_problems,
    read_train_trace,
)
from bso.simulator.workloads import known_workloads
from tests.unit.simulator.problems import POWER, TRAIN, WORKLOAD, write_traces

FOLDER = os.environ.get("BSO_TRACES")


def test_a_problem_is_what_both_traces_have_in_common(tmp_path: Path) -> None:
    (problem,) = read_problems(write_traces(tmp_path), workloads=[WORKLOAD])
    assert problem.name == "shapes/g1"
    assert problem.runs == {32: (5, None), 64: (6,)}
    assert problem.max_power_w == 200.0
    assert (problem.default_batch_size, problem.default_recurrences) == (64, 2 * 2 * 2)
    assert problem.best_price(32, 0.5).cost(eta_knob=0.5, max_power_w=200) == (150 * 10 + 200 * 10) / 2
    assert problem.best_price(32, 1.0).energy_j == 10 * 150
    assert problem.price_under({100: 0.25, 200: 0.75}, 32).time_s == 0.25 * 20 + 0.75 * 10
    assert problem.price_under({100: 0.25, 200: 0.75}, 32).energy_j == 0.25 * 20 * 90 + 0.75 * 10 * 150


def test_traces_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "summary_power_g2.csv.xz"
    path.write_bytes(lzma.compress(POWER.encode()))
    assert read_power_trace(path).gpu == "g2"
    path.write_bytes(lzma.compress(POWER.encode())[:-9])
    with pytest.raises(InvalidTrace, match="is not a complete xz file"):
        read_power_trace(path)


def test_a_trace_beside_its_compressed_self_is_not_counted_twice(tmp_path: Path) -> None:
    folder = write_traces(tmp_path)
    (folder / "summary_power_g1.csv.xz").write_bytes(lzma.compress(POWER.encode()))
    with pytest.raises(InvalidTrace, match=r"summary_power_g1.csv.xz: lies beside summary_power_g1.csv: remove one"):
        read_problems(folder, workloads=[WORKLOAD])


def test_a_default_larger_than_what_a_gpu_can_run_is_lowered(tmp_path: Path) -> None:
    train, power = (write_traces(tmp_path) / name for name in ("summary_train.csv", "summary_power_g1.csv"))
    for default, expected in ((4096, 64), (48, 32), (8, 32)):
        workload = Workload(
            dataset="shapes",
            network="tiny",
            optimizer="sgd",
            target_metric=0.9,
            max_epochs=50,
            default_batch_size=default,
        )
        assert make_problem(workload, read_train_trace(train), read_power_trace(power)).default_batch_size == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shapes,tiny,ten,sgd,0.1,1,0.9,5", "line 2: batch_size must be a whole number from 1 to .*, got 'ten'"),
        ("shapes,tiny,32,sgd,0.1,1,high,5", "line 2: target_metric must be a finite number, got 'high'"),
        ("shapes,tiny,32,sgd,0.1,1,0.9,0", "line 2: target_epoch must be a whole number from 1 to"),
        ("shapes,tiny,32,sgd,0.1,1,0.9,2.5", "line 2: target_epoch must be a whole number"),
        ("shapes,,32,sgd,0.1,1,0.9,5", "line 2: network must be a name, got ''"),
        ("shapes,tiny,32", "line 2: expected 8 fields, got 3"),
        ("shapes,tiny,32,sgd,0.1,1,0.9,5\nshapes,tiny,32,sgd,0.1,1,0.9,6", "line 3: run 1 has target_metric 0.9 twice"),
        ('"shapes', "is not CSV"),
        ("", "holds no run"),
    ],
)
def test_a_malformed_train_trace_is_refused_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "summary_train.csv"
    path.write_text(TRAIN.splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(InvalidTrace, match=said):
        read_train_trace(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shapes,tiny,32,sgd,0,20,90", "line 2: power_limit must be a positive number, got '0'"),
        ("shapes,tiny,32,sgd,100,-1,90", "line 2: time_per_epoch must be a positive number, got '-1'"),
        ("shapes,tiny,32,sgd,100,20,nan", "line 2: average_power must be a positive number, got 'nan'"),
        ("shapes,tiny,32,sgd,100,20,90\nshapes,tiny,32,sgd,100,20,90", "line 3: power_limit 100 comes twice"),
        ("", "holds no measurement"),
    ],
)
def test_a_malformed_power_trace_is_refused_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "summary_power_g1.csv"
    path.write_text(POWER.splitlines()[0] + "\n" + line + "\n")
    with pytest.raises(InvalidTrace, match=said):
        read_power_trace(path)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "summary_train.csv"
    path.write_text("dataset,network\n")
    with pytest.raises(InvalidTrace, match=r"line 1: expected the columns .*; batch_size, optimizer, run, "):
        read_train_trace(path)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "summary_train.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidTrace, match="is not UTF-8 text"):
        read_train_trace(path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"target_metric": 0.95}, "says nothing of target metric 0.95 for shapes tiny sgd; it has 0.8, 0.9"),
        ({"max_epochs": 4}, "reached 0.9 within 4 epochs: no batch size can succeed"),
        ({"dataset": "faces"}, "none of these workloads is in the traces: faces tiny sgd. .* has shapes tiny sgd"),
    ],
)
def test_settings_that_the_traces_do_not_answer_are_refused(
    tmp_path: Path, changed: dict[str, object], said: str
) -> None:
    settings = {
        "dataset": "shapes",
        "network": "tiny",
        "optimizer": "sgd",
        "target_metric": 0.9,
        "max_epochs": 50,
        "default_batch_size": 64,
        **changed,
    }
    with pytest.raises(InvalidSimulation, match=said):
        read_problems(write_traces(tmp_path), workloads=[Workload(**settings)])  # type: ignore[arg-type]


def test_a_gpu_whose_trace_lacks_the_workload_is_named(tmp_path: Path) -> None:
    folder = write_traces(tmp_path, power=POWER.replace("shapes", "faces"))
    said = r"holds runs of shapes tiny sgd, but no epoch of them is in .*summary_power_g1.csv"
    with pytest.raises(InvalidSimulation, match=said):
        read_problems(folder, workloads=[WORKLOAD])


DESCRIBED = """dataset,network,optimizer,target_metric,max_epochs,default_batch_size,lower_is_better
shapes,tiny,sgd,0.9,50,64,
"""


def test_a_file_beside_the_traces_describes_workloads_that_are_not_known(tmp_path: Path) -> None:
    write_traces(tmp_path)
    with pytest.raises(InvalidSimulation, match=r"workloads.csv may describe what is not known"):
        read_problems(tmp_path)
    (tmp_path / "workloads.csv").write_text(DESCRIBED)
    [problem] = read_problems(tmp_path)
    assert problem.workload == WORKLOAD
    (tmp_path / "workloads.csv").write_text(DESCRIBED.replace("64,", "32,TRUE") + "cifar100,net,sgd,0.5,9,8,false\n")
    changed = {workload.dataset: workload for workload in known_workloads(tmp_path)}
    assert (changed["shapes"].default_batch_size, changed["shapes"].higher_is_better_metric) == (32, False)
    assert changed["cifar100"].network == "net"
    assert changed["squad"] in KNOWN_WORKLOADS.values()


@pytest.mark.parametrize(
    ("column", "value", "samples"), [("", "", 50_000), (",samples", ",", 50_000), (",samples", ",99", 99)]
)
def test_a_description_may_say_how_many_samples_an_epoch_has(
    tmp_path: Path, column: str, value: str, samples: int
) -> None:
    header, line, _ = DESCRIBED.split("\n")
    (tmp_path / "workloads.csv").write_text(f"{header}{column}\n{line}{value}\n")
    assert {one.samples for one in known_workloads(tmp_path) if one.dataset == "shapes"} == {samples}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shapes,tiny,sgd,high,50,64,", "line 3: target_metric must be a finite number, got 'high'"),
        ("faces,tiny,sgd,0.9,0,64,", "line 3: max_epochs must be a whole number from 1 to"),
        ("faces,tiny,sgd,0.9,50,64,maybe", "line 3: lower_is_better must be true, false or empty, got 'maybe'"),
        ("shapes,tiny,adam,0.9,50,64,", "line 3: dataset must be another one in each line, got 'shapes'"),
    ],
)
def test_a_malformed_description_is_refused_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    write_traces(tmp_path)
    (tmp_path / "workloads.csv").write_text(DESCRIBED + line + "\n")
    with pytest.raises(InvalidTrace, match=said):
        read_problems(tmp_path)


def test_a_gpu_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSimulation, match="no power trace of GPU h200; there is g1"):
        read_problems(write_traces(tmp_path), gpus=["h200"], workloads=[WORKLOAD])


@pytest.mark.skipif(not FOLDER, reason="BSO_TRACES names no folder with the traces of the Zeus paper")
def test_the_traces_of_the_paper_hold_its_four_workloads_on_each_gpu() -> None:
    problems = {problem.name: problem for problem in read_problems(Path(str(FOLDER)))}
    datasets = ("cifar100", "librispeech", "movielens-1m", "squad")
    assert sorted(problems) == sorted(f"{dataset}/{gpu}" for dataset in datasets for gpu in ("a40", "v100"))
    assert problems["cifar100/a40"].default_recurrences == 2 * 10 * 9
    assert problems["librispeech/a40"].default_batch_size == 192


def test_a_problem_needs_runs_epochs_and_a_batch_size_that_has_both(tmp_path: Path) -> None:
    folder = write_traces(tmp_path, power=POWER.replace(",32,", ",48,").replace(",64,", ",96,"))
    train, power = read_train_trace(folder / "summary_train.csv"), read_power_trace(folder / "summary_power_g1.csv")
    with pytest.raises(InvalidSimulation, match="have no batch size of shapes tiny sgd in common"):
        make_problem(WORKLOAD, train, power)
    other = replace(WORKLOAD, optimizer="adam")
    with pytest.raises(InvalidSimulation, match="holds no run of shapes tiny adam; it holds shapes tiny sgd"):
        make_problem(other, train, power)
    (folder / "summary_power_g2.csv").write_text(POWER.replace("sgd", "adam"))
    with pytest.raises(InvalidSimulation, match=r"summary_power_g2\.csv holds no epoch of shapes tiny sgd"):
        make_problem(WORKLOAD, train, read_power_trace(folder / "summary_power_g2.csv"))


def test_a_number_of_samples_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    header, line, _ = DESCRIBED.split("\n")
    (tmp_path / "workloads.csv").write_text(f"{header},samples\n{line},few\n")
    with pytest.raises(InvalidTrace, match="line 2: samples must be a whole number from 1 to"):
        known_workloads(tmp_path)
