"""Groups of overlapping recurrences: read, made, and simulated."""

import statistics
from itertools import pairwise
from pathlib import Path

import pytest

from bso.simulator import InvalidSimulation, InvalidTrace
from bso.simulator.cluster import (
    ClusterJob,
    cluster_cases,
    cluster_trace_text,
    make_cluster_trace,
    read_cluster_trace,
    write_cluster_trace,
)
from bso.simulator.study import StudySettings, study
from tests.unit.simulator.problems import make

HEADER = "group,start_time,end_time,dataset,runtime_ratio\n"
RUNTIMES = {"shapes": 100.0, "faces": 900.0}


def made(**changed: object) -> tuple[ClusterJob, ...]:
    arguments: dict[str, object] = {"groups": 40, "recurrences": 60, "overlap": 2.0, "seed": 1, **changed}
    return make_cluster_trace(RUNTIMES, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.xz"])
def test_a_trace_that_is_made_can_be_read_again(tmp_path: Path, name: str) -> None:
    jobs = made()
    write_cluster_trace(tmp_path / name, jobs)
    assert cluster_trace_text(read_cluster_trace(tmp_path / name)) == cluster_trace_text(jobs)


def test_a_trace_need_not_say_when_recurrences_ended(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("group,dataset,start_time,runtime_ratio\ng,shapes,700,1.1\ng,shapes,100,0.9\n")
    jobs = read_cluster_trace(path)
    assert [(job.start_s, job.end_s, job.runtime_ratio) for job in jobs] == [(700.0, None, 1.1), (100.0, None, 0.9)]
    (case,) = cluster_cases(jobs, [make({32: (5,)}, default=32)])
    assert case.submissions is not None
    assert [submission.start_s for submission in case.submissions] == [0.0, 600.0]
    path.write_text(cluster_trace_text(jobs))
    assert read_cluster_trace(path) == jobs


def test_a_name_that_begins_as_a_formula_does_is_read_as_it_was(tmp_path: Path) -> None:
    jobs = make_cluster_trace({"=1+1": 9.0, "'faces": 9.0}, groups=2, recurrences=1, overlap=0.0, seed=1)
    write_cluster_trace(tmp_path / "trace.csv", jobs)
    assert ",'=1+1," in (tmp_path / "trace.csv").read_text()
    assert {job.dataset for job in read_cluster_trace(tmp_path / "trace.csv")} == {"=1+1", "'faces"}


def test_the_same_seed_makes_the_same_trace() -> None:
    assert made() == made() != made(seed=2)


def test_groups_have_about_as_many_recurrences_and_overlaps_as_wanted() -> None:
    jobs = made()
    groups = {job.group: [one for one in jobs if one.group == job.group] for job in jobs}
    assert len(groups) == 40
    assert statistics.mean(map(len, groups.values())) == pytest.approx(60, rel=0.35)
    beside = [
        sum(other.start_s < job.start_s < (other.end_s or 0.0) for other in group)
        for group in groups.values()
        for job in group
    ]
    assert statistics.mean(beside) == pytest.approx(2.0, rel=0.2)
    assert statistics.mean(job.runtime_ratio for job in jobs) == pytest.approx(1.0, rel=0.05)


def test_without_overlap_one_follows_the_other() -> None:
    group = [job for job in made(overlap=0.0) if job.group == "group-2"]
    assert all(two.start_s == one.end_s for one, two in pairwise(group))


def test_each_group_is_a_job_whose_recurrences_begin_when_the_trace_says() -> None:
    jobs = [
        ClusterJob(group="g", dataset="shapes", start_s=700.0, end_s=800.0, runtime_ratio=1.1),
        ClusterJob(group="g", dataset="shapes", start_s=100.0, end_s=300.0, runtime_ratio=0.9),
    ]
    (case,) = cluster_cases(jobs, [make({32: (5,)}, default=32)])
    assert case.name == "g shapes/g1"
    (result,) = study([case], range(1), StudySettings())
    assert [trial.began_s for trial in result.runs[0].trials] == [0.0, 600.0]
    first, second = result.runs[0].oracle.costs
    assert second / first == pytest.approx(1.1 / 0.9)


def test_a_dataset_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InvalidSimulation, match=r"datasets without measured trainings .*: faces; known are shapes"):
        cluster_cases(made(), [make({32: (5,)})])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("g,zero,1,shapes,1", "line 2: start_time must be a finite number, got 'zero'"),
        ("g,5,1,shapes,1", "line 2: end_time must be at or after start_time 5, got '1'"),
        ("g,0,1,shapes,-1", "line 2: runtime_ratio must be a positive number, got '-1'"),
        ("g,0,1,shapes,1\ng,0,1,faces,1", "line 3: dataset must be shapes, as before in group g, got 'faces'"),
        ("", "holds no recurrence"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_line(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "cluster.csv"
    path.write_text(HEADER + lines + "\n")
    with pytest.raises(InvalidTrace, match=said):
        read_cluster_trace(path)
