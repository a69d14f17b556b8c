"""Groups of overlapping recurrences on a cluster: reading such a trace, and making one.

The format is that of the Alibaba trace v2020 as the Zeus paper maps it to its workloads: a CSV file (``.xz``:
compressed) with a line per recurrence: group, start_time [s], dataset, and runtime_ratio, the runtime of this
recurrence over the mean of its dataset. It may have an end_time [s], too, by which nothing goes: how long a recurrence
takes is what is simulated.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from bso.domain.foreign_text import csv_cell
from bso.domain.randomness import seed_from, standard_normal, uniform
from bso.simulator.csv_files import read_rows
from bso.simulator.errors import InvalidSimulation, InvalidTrace
from bso.simulator.problem import BatchSizeProblem
from bso.simulator.simulation import Submission
from bso.simulator.study import Case

COLUMNS = ("group", "start_time", "end_time", "dataset", "runtime_ratio")
_NEEDED = ("group", "start_time", "dataset", "runtime_ratio")
_SPREAD = 0.25  # standard deviation of ln runtime_ratio in made traces


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """One recurrence of a group, as a cluster saw it. ``end_s`` is None where the trace does not say."""

    group: str
    dataset: str
    start_s: float
    end_s: float | None = None
    runtime_ratio: float


def read_cluster_trace(path: Path) -> tuple[ClusterJob, ...]:
    """The recurrences of a file, in its order. Raises InvalidTrace, which names the line."""
    jobs: list[ClusterJob] = []
    datasets: dict[str, str] = {}
    for row in read_rows(path, _NEEDED):
        job = ClusterJob(
            group=row.text("group"),
            dataset=row.text("dataset"),
            start_s=row.number("start_time"),
            end_s=row.number("end_time") if row.fields.get("end_time", "").strip() else None,
            runtime_ratio=row.positive("runtime_ratio"),
        )
        if job.end_s is not None and job.end_s < job.start_s:
            raise row.invalid("end_time", f"at or after start_time {job.start_s:g}")
        if datasets.setdefault(job.group, job.dataset) != job.dataset:
            raise row.invalid("dataset", f"{datasets[job.group]}, as before in group {job.group}")
        jobs.append(job)
    if not jobs:
        raise InvalidTrace(path, None, "holds no recurrence, only a header")
    return tuple(jobs)


def cluster_cases(jobs: Sequence[ClusterJob], problems: Sequence[BatchSizeProblem]) -> tuple[Case, ...]:
    """A case for each group, on each GPU of the problems. Raises InvalidSimulation for a dataset without a problem."""
    of_dataset: dict[str, list[BatchSizeProblem]] = {}
    for problem in problems:
        of_dataset.setdefault(problem.workload.dataset, []).append(problem)
    unknown = sorted({job.dataset for job in jobs} - of_dataset.keys())
    if unknown:
        raise InvalidSimulation(
            "the cluster trace has datasets without measured trainings or without a known target: "
            f"{', '.join(unknown)}; known are {', '.join(sorted(of_dataset))}"
        )
    groups: dict[str, list[ClusterJob]] = {}
    for job in jobs:
        groups.setdefault(job.group, []).append(job)
    return tuple(
        Case(name=f"{group} {problem.name}", problem=problem, submissions=_submissions(members))
        for group, members in groups.items()
        for problem in of_dataset[members[0].dataset]
    )


def make_cluster_trace(
    mean_runtimes_s: Mapping[str, float], *, groups: int, recurrences: int, overlap: float, seed: int
) -> tuple[ClusterJob, ...]:
    """A trace of so many groups, the datasets in turn; the same arguments give the same trace.

    ``mean_runtimes_s`` is by dataset. ``recurrences`` is the mean number of a group (geometrically distributed, at
    least 1), ``overlap`` how many others run on the average when one begins. Starts are a Poisson process, runtimes
    log-normal.
    """
    return tuple(
        job
        for number, (dataset, mean_runtime_s) in zip(range(1, groups + 1), cycle(mean_runtimes_s.items()), strict=False)
        for job in _group(
            f"group-{number}",
            dataset,
            mean_runtime_s=mean_runtime_s,
            mean_recurrences=recurrences,
            overlap=overlap,
            seed=seed_from(f"{seed}/group/{number}"),
        )
    )


def cluster_trace_text(jobs: Iterable[ClusterJob]) -> str:
    """A trace as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for job in jobs:
        ended = "" if job.end_s is None else f"{job.end_s:.3f}"
        cells = (job.group, f"{job.start_s:.3f}", ended, job.dataset, f"{job.runtime_ratio:.6f}")
        writer.writerow(map(csv_cell, cells))
    return text.getvalue()


def write_cluster_trace(path: Path, jobs: Iterable[ClusterJob]) -> None:
    """Write a trace, compressed if its name ends in ``.xz``."""
    data = cluster_trace_text(jobs).encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)


def _submissions(members: Sequence[ClusterJob]) -> tuple[Submission, ...]:
    """In the order of their starts, from the group's first one on."""
    ordered = sorted(members, key=lambda job: job.start_s)
    first_s = ordered[0].start_s
    return tuple(Submission(start_s=job.start_s - first_s, length=job.runtime_ratio) for job in ordered)


def _group(
    name: str, dataset: str, *, mean_runtime_s: float, mean_recurrences: int, overlap: float, seed: int
) -> Iterable[ClusterJob]:
    chance_to_end = 1.0 / mean_recurrences
    luck = uniform(seed, 0, 0)
    times = 1 if chance_to_end == 1.0 else 1 + int(math.log(luck) / math.log(1.0 - chance_to_end))
    # In a Poisson process of rate r, r x runtime others are running when one begins.
    mean_gap_s = mean_runtime_s / overlap if overlap > 0 else None
    start_s = 0.0
    for number in range(1, times + 1):
        ratio = math.exp(_SPREAD * standard_normal(seed, number, 1) - _SPREAD**2 / 2)
        end_s = start_s + ratio * mean_runtime_s
        yield ClusterJob(group=name, dataset=dataset, start_s=start_s, end_s=end_s, runtime_ratio=ratio)
        start_s = end_s if mean_gap_s is None else start_s - mean_gap_s * math.log(uniform(seed, number, 2))
