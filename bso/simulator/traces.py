"""Measured training runs: epochs to a target, and what an epoch takes, in the format of the Zeus artifact (NSDI '23).

``summary_train.csv`` holds one row per run and target: the first epoch at which the run's validation metric reached
it (empty or nan: never). ``summary_power_GPU.csv`` holds, per batch size and power limit, time and power of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bso.simulator.csv_files import TraceRow, read_rows
from bso.simulator.errors import InvalidTrace
from bso.simulator.workloads import WorkloadKey

TRAIN_COLUMNS = ("dataset", "network", "batch_size", "optimizer", "run", "target_metric", "target_epoch")
POWER_COLUMNS = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")
TRAIN_FILE = "summary_train.csv"
POWER_PREFIX = "summary_power_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One training run: the epoch at which it first reached each target metric, None where it never did."""

    workload: WorkloadKey
    batch_size: int
    reached: Mapping[float, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEpoch:
    """What one epoch takes under one power limit [W]: seconds, and average watts."""

    power_limit_w: float
    time_s: float
    average_power_w: float

    @property
    def energy_j(self) -> float:
        """What one epoch uses [J]."""
        return self.time_s * self.average_power_w


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTrace:
    """All measured runs of a file."""

    path: Path
    runs: tuple[MeasuredRun, ...]

    def of(self, workload: WorkloadKey) -> tuple[MeasuredRun, ...]:
        """The runs of one workload."""
        return tuple(run for run in self.runs if run.workload == workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTrace:
    """What epochs take on one GPU, by workload and batch size, the power limits ascending.

    ``max_power_w`` is the largest power limit of the file: MaxPower of the paper's cost.
    """

    path: Path
    gpu: str
    max_power_w: float
    epochs: Mapping[WorkloadKey, Mapping[int, tuple[MeasuredEpoch, ...]]]


def read_train_trace(path: Path) -> TrainTrace:
    """Read the runs of a file. Raises InvalidTrace, which names the line."""
    reached: dict[tuple[WorkloadKey, int, str], dict[float, int | None]] = {}
    for row in read_rows(path, TRAIN_COLUMNS):
        of_run = reached.setdefault((_workload(row), row.count("batch_size"), _run(row)), {})
        target = row.number("target_metric")
        if target in of_run:
            raise InvalidTrace(path, row.line, f"run {row.text('run')} has target_metric {target:g} twice")
        of_run[target] = row.count_or_never("target_epoch")
    if not reached:
        raise InvalidTrace(path, None, "holds no run, only a header")
    runs = (MeasuredRun(workload=key, batch_size=size, reached=of) for (key, size, _), of in reached.items())
    return TrainTrace(path=path, runs=tuple(runs))


def read_power_trace(path: Path, gpu: str | None = None) -> PowerTrace:
    """Read what epochs take on a GPU, whose name is the file's unless given. Raises InvalidTrace naming the line."""
    found: dict[WorkloadKey, dict[int, dict[float, MeasuredEpoch]]] = {}
    for row in read_rows(path, POWER_COLUMNS):
        of_size = found.setdefault(_workload(row), {}).setdefault(row.count("batch_size"), {})
        measured = MeasuredEpoch(
            power_limit_w=row.positive("power_limit"),
            time_s=row.positive("time_per_epoch"),
            average_power_w=row.positive("average_power"),
        )
        if measured.power_limit_w in of_size:
            raise InvalidTrace(path, row.line, f"power_limit {measured.power_limit_w:g} comes twice for a batch size")
        of_size[measured.power_limit_w] = measured
    if not found:
        raise InvalidTrace(path, None, "holds no measurement, only a header")
    epochs = {
        workload: {size: tuple(of[limit] for limit in sorted(of)) for size, of in sorted(sizes.items())}
        for workload, sizes in found.items()
    }
    highest = max(one.power_limit_w for sizes in epochs.values() for of in sizes.values() for one in of)
    return PowerTrace(path=path, gpu=gpu or gpu_of(path), max_power_w=highest, epochs=epochs)


def gpu_of(path: Path) -> str:
    """The GPU that a power trace's name says: ``a40`` for ``summary_power_a40.csv``."""
    return path.name.removesuffix(".xz").removesuffix(".csv").removeprefix(POWER_PREFIX)


def power_files(folder: Path) -> Sequence[Path]:
    """The power traces in a folder, by name. Raises InvalidTrace for one that is there twice."""
    plain, compressed = folder.glob(f"{POWER_PREFIX}*.csv"), [*folder.glob(f"{POWER_PREFIX}*.csv.xz")]
    found = sorted([*plain, *compressed])
    if twice := [path for path in compressed if path.with_suffix("") in found]:
        raise InvalidTrace(twice[0], None, f"lies beside {twice[0].with_suffix('').name}: remove one of them")
    return found


def _workload(row: TraceRow) -> WorkloadKey:
    return row.text("dataset"), row.text("network"), row.text("optimizer")


def _run(row: TraceRow) -> str:
    """What distinguishes runs: the learning rate, too, where the trace has it."""
    return f"{row.fields.get('learning_rate', '')}/{row.text('run')}"
