"""A problem: one workload on one GPU, as it was measured. What a policy has to solve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.progress import cost_of
from bso.simulator.errors import InvalidSimulation
from bso.simulator.traces import (
    TRAIN_FILE,
    MeasuredEpoch,
    PowerTrace,
    TrainTrace,
    power_files,
    read_power_trace,
    read_train_trace,
)
from bso.simulator.workloads import WORKLOADS_FILE, Workload, known_workloads


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPrice:
    """What an epoch takes: seconds and joules."""

    time_s: float
    energy_j: float

    def cost(self, *, eta_knob: float, max_power_w: float) -> float:
        """Both as one cost [J]."""
        return cost_of(energy_j=self.energy_j, time_s=self.time_s, eta_knob=eta_knob, max_power_w=max_power_w)

    def scaled(self, factor: float) -> EpochPrice:
        """A longer or shorter epoch."""
        return EpochPrice(time_s=self.time_s * factor, energy_j=self.energy_j * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizeProblem:
    """A workload on a GPU. Its batch sizes have both measured runs and measured epochs.

    ``runs`` holds, by batch size, the epochs that each measured run took to the target; None: it never got there.
    ``infeasible`` are batch sizes that do not fit in memory: a trial of one ends at its first step. ``earlier`` is what
    the job was before, on another GPU or with another target metric, in the order of time, with the same batch sizes.
    """

    workload: Workload
    gpu: str
    max_power_w: float
    runs: Mapping[int, tuple[int | None, ...]]
    epochs: Mapping[int, tuple[MeasuredEpoch, ...]]
    infeasible: frozenset[int] = frozenset()
    earlier: tuple[JobPhase, ...] = ()

    def phase(self, recurrence: int) -> int:
        """How many phases of the job have ended before a recurrence (1, 2, ...)."""
        return sum(recurrence >= phase.until for phase in self.earlier)

    def at(self, recurrence: int) -> BatchSizeProblem:
        """What the job is at a recurrence (1, 2, ...)."""
        number = self.phase(recurrence)
        return self.earlier[number].problem if number < len(self.earlier) else self

    @property
    def phases(self) -> Mapping[int, BatchSizeProblem]:
        """What the job is, by the first recurrence of each phase, in the order of time."""
        starts = (1, *(phase.until for phase in self.earlier))
        return dict(zip(starts, (*(phase.problem for phase in self.earlier), self), strict=True))

    @property
    def name(self) -> str:
        """The problem in one word."""
        return f"{self.workload.dataset}/{self.gpu}"

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes, ascending."""
        return tuple(sorted(self.runs))

    @property
    def default_batch_size(self) -> int:
        """The workload's default, or the largest that is not larger and fits in every phase, or the smallest of all."""
        infeasible = frozenset[int]().union(*(problem.infeasible for problem in self.phases.values()))
        usual = self.workload.default_batch_size
        fitting = [size for size in self.batch_sizes if size <= usual and size not in infeasible]
        return fitting[-1] if fitting else self.batch_sizes[0]

    @property
    def power_limits_w(self) -> tuple[float, ...]:
        """The power limits [W] under which epochs were measured, ascending."""
        return tuple(sorted({one.power_limit_w for measured in self.epochs.values() for one in measured}))

    @property
    def default_recurrences(self) -> int:
        """How often the paper lets a job recur: twice the number of its configurations."""
        return 2 * len(self.batch_sizes) * len(self.power_limits_w)

    @property
    def hardware(self) -> HardwareKind:
        """The kind of hardware that its trials name."""
        return HardwareKind(gpu_model=self.gpu, max_power_w=self.max_power_w, energy_method=EnergyMethod.NVML_COUNTER)

    def has_power_limits(self, batch_size: int) -> bool:
        """Whether there is more than one to choose from: only then a training profiles them."""
        return len(self.epochs[batch_size]) > 1

    def best_limit_w(self, batch_size: int, eta_knob: float) -> float:
        """The power limit [W] at which an epoch costs least."""
        prices = {one.power_limit_w: _price(one) for one in self.epochs[batch_size]}
        return min(prices, key=lambda w: prices[w].cost(eta_knob=eta_knob, max_power_w=self.max_power_w))

    def best_price(self, batch_size: int, eta_knob: float) -> EpochPrice:
        """An epoch at the power limit at which it costs least."""
        return self.price_under({self.best_limit_w(batch_size, eta_knob): 1.0}, batch_size)

    def unlimited_price(self, batch_size: int) -> EpochPrice:
        """An epoch at the largest power limit, as without any optimization."""
        return _price(self.epochs[batch_size][-1])

    def price_under(self, shares: Mapping[float, float], batch_size: int) -> EpochPrice:
        """An epoch that has these shares of its steps under each power limit [W]."""
        measured = {one.power_limit_w: one for one in self.epochs[batch_size]}
        return EpochPrice(
            time_s=sum(share * measured[limit_w].time_s for limit_w, share in shares.items()),
            energy_j=sum(share * measured[limit_w].energy_j for limit_w, share in shares.items()),
        )

    def power_measurements(self, batch_size: int, *, stretched: float) -> tuple[PowerMeasurement, ...]:
        """What a training measures under each power limit whose epochs take ``stretched`` times as long as usual."""
        return tuple(
            PowerMeasurement(
                power_limit_w=one.power_limit_w,
                average_power_w=one.average_power_w,
                samples_per_s=self.workload.samples / (one.time_s * stretched),
            )
            for one in self.epochs[batch_size]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPhase:
    """What a job is until a recurrence, the first one (1, 2, ...) that no longer belongs to it."""

    problem: BatchSizeProblem
    until: int


def make_problem(workload: Workload, train: TrainTrace, power: PowerTrace) -> BatchSizeProblem:
    """The problem that two traces describe. Raises InvalidSimulation where they do not hold it."""
    runs = train.of(workload.key)
    name = " ".join(workload.key)
    if not runs:
        raise InvalidSimulation(f"{train.path} holds no run of {name}; it holds {_listed(train)}")
    measured = power.epochs.get(workload.key)
    if measured is None:
        raise InvalidSimulation(f"{power.path} holds no epoch of {name}")
    target = _target(workload, train)
    by_size: dict[int, tuple[int | None, ...]] = {}
    for run in runs:
        if run.batch_size in measured:
            by_size[run.batch_size] = (*by_size.get(run.batch_size, ()), run.reached.get(target))
    if not by_size:
        raise InvalidSimulation(f"{train.path} and {power.path} have no batch size of {name} in common")
    if not any(epochs is not None and epochs <= workload.max_epochs for of in by_size.values() for epochs in of):
        raise InvalidSimulation(
            f"no run of {name} in {train.path} reached {workload.target_metric:g} within {workload.max_epochs} epochs: "
            "no batch size can succeed; set another target metric or more epochs"
        )
    return BatchSizeProblem(
        workload=workload,
        gpu=power.gpu,
        max_power_w=power.max_power_w,
        runs=by_size,
        epochs={size: measured[size] for size in by_size},
    )


def read_problems(
    folder: Path, *, gpus: Sequence[str] = (), workloads: Sequence[Workload] | None = None
) -> tuple[BatchSizeProblem, ...]:
    """The problems of a folder with ``summary_train.csv`` and a ``summary_power_GPU.csv`` for each GPU.

    Without ``gpus`` all there are; without ``workloads`` those of the paper, and those in ``workloads.csv``. Workloads
    that a trace does not hold are left out. Raises InvalidTrace and InvalidSimulation.
    """
    train = read_train_trace(folder / TRAIN_FILE)
    powers = [read_power_trace(path) for path in power_files(folder)]
    known = known_workloads(folder) if workloads is None else workloads
    return problems_of(train, powers, gpus=gpus, workloads=known)


def problems_of(
    train: TrainTrace, powers: Sequence[PowerTrace], *, gpus: Sequence[str], workloads: Sequence[Workload]
) -> tuple[BatchSizeProblem, ...]:
    """The problems of these workloads on these GPUs (none named: all), as far as the traces hold them."""
    known = [power.gpu for power in powers]
    unknown = [gpu for gpu in gpus if gpu not in known]
    if unknown:
        raise InvalidSimulation(f"there is no power trace of GPU {', '.join(unknown)}; there is {', '.join(known)}")
    wanted = [power for power in powers if not gpus or power.gpu in gpus]
    held = {run.workload for run in train.runs}
    problems = tuple(
        make_problem(workload, train, power)
        for workload in workloads
        for power in wanted
        if workload.key in held and workload.key in power.epochs
    )
    if not problems:
        raise InvalidSimulation(_why_none(train, wanted, workloads))
    return problems


def _why_none(train: TrainTrace, powers: Sequence[PowerTrace], workloads: Sequence[Workload]) -> str:
    held = {run.workload for run in train.runs}
    without_epochs = [" ".join(workload.key) for workload in workloads if workload.key in held]
    if without_epochs:
        paths = ", ".join(str(power.path) for power in powers)
        return f"{train.path} holds runs of {'; '.join(without_epochs)}, but no epoch of them is in {paths}"
    names = "; ".join(" ".join(workload.key) for workload in workloads)
    return (
        f"none of these workloads is in the traces: {names}. {train.path} has {_listed(train)}; "
        f"{train.path.with_name(WORKLOADS_FILE)} may describe what is not known"
    )


def _target(workload: Workload, train: TrainTrace) -> float:
    """The target as the trace writes it."""
    targets = sorted({target for run in train.of(workload.key) for target in run.reached})
    for target in targets:
        if math.isclose(target, workload.target_metric, rel_tol=1e-9):
            return target
    known = ", ".join(f"{target:g}" for target in targets)
    raise InvalidSimulation(
        f"{train.path} says nothing of target metric {workload.target_metric:g} for {' '.join(workload.key)}; "
        f"it has {known}"
    )


def _listed(train: TrainTrace) -> str:
    return "; ".join(" ".join(key) for key in sorted({run.workload for run in train.runs}))


def _price(measured: MeasuredEpoch) -> EpochPrice:
    return EpochPrice(time_s=measured.time_s, energy_j=measured.energy_j)
