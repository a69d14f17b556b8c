"""Made problems of which the truth is known: families of cost curves, their parameters drawn from a seed.

A truth is ln of what a converged model costs, by batch size, relative to the cheapest one. How much of it is epochs and
how much the cost of an epoch is drawn apart: larger batch sizes take more epochs, and an epoch of each costs what makes
the truth come true.

Each problem is known on another GPU, too, on which an epoch of every batch size costs more or less by a drawn factor
(0.2 to 5), by a drawn slope over the batch size (some 10 % per octave) and by a drawn smooth wave (some 10 %); and for
other target metrics t, to which a training takes

    ((1 - 0.9) / (1 - t)) ** (q + g * octaves)

times the epochs that it takes to 0.9: q is drawn from 0.5 to 1.5 and g from -0.05 to 0.05, and octaves are counted from
the middle of the batch sizes. An epoch costs the same, whatever the target is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from bso.domain.frozen_values import replace
from bso.domain.randomness import seed_from, standard_normal, uniform
from bso.simulator.errors import InvalidSimulation
from bso.simulator.phases import NO_CHANGES, Changes, in_phases
from bso.simulator.problem import BatchSizeProblem
from bso.simulator.traces import MeasuredEpoch
from bso.simulator.workloads import Workload

RUNS = 40
"""Runs of each batch size, of which the simulator draws."""
_POWER_W = 100.0
TARGET = 0.9
"""The target metric of made problems."""
OTHER_TARGETS = (0.5, 0.99)
"""The least and the largest target metric for which they are known."""
GPU, OTHER_GPU = "made", "made-2"
"""The GPU of made problems, and the other one that they are known on."""


class Family(Enum):
    """The shape of a truth over the batch sizes, which are equally far apart in octaves."""

    FALLING = "falling"  # the largest is the cheapest
    RISING = "rising"  # the smallest is the cheapest
    FLAT = "flat"  # all within 4 %
    VALLEY = "valley"  # one optimum inside
    TWO_VALLEYS = "two-valleys"  # two optima, one of them about 5 to 25 % costlier, and a ridge between them
    CLIFF = "cliff"  # falling, but the largest ones do not fit in memory


class Start(Enum):
    """Where the default batch size lies among those that fit."""

    CHEAPEST = "cheapest"
    MIDDLE = "middle"
    COSTLIEST = "costliest"


def made_problem(family: Family, start: Start, seed: int, *, changes: Changes = NO_CHANGES) -> BatchSizeProblem:
    """The problem of a family with this seed: always the same one, whatever the default is.

    Raises InvalidSimulation for a change to a GPU, or a target metric, for which it is not known.
    """
    if changes.move is not None and changes.move.gpu not in (GPU, OTHER_GPU):
        raise InvalidSimulation(f"generated problems move from GPU {OTHER_GPU}, got {changes.move.gpu}")
    target = TARGET if changes.new_version is None else changes.new_version.target_metric
    if not OTHER_TARGETS[0] <= target <= OTHER_TARGETS[1]:
        least, most = OTHER_TARGETS
        raise InvalidSimulation(f"generated problems have target metrics from {least:g} to {most:g}, got {target:g}")
    own = _usual_problem(family, start, seed)
    name = f"truth {family.value} {seed}"

    def made(gpu: str, target_metric: float) -> BatchSizeProblem:
        there = own if gpu == GPU else _on_other_gpu(own, _Draws(seed_from(f"{name} {gpu}")))
        return there if target_metric == TARGET else _with_target(there, target_metric, _Draws(seed_from(f"{name} q")))

    return in_phases(own, changes, made)


def made_problems(seed: int, *, changes: Changes = NO_CHANGES) -> tuple[BatchSizeProblem, ...]:
    """One problem of each family, with each default. Raises InvalidSimulation as made_problem does."""
    return tuple(made_problem(family, start, seed, changes=changes) for family in Family for start in Start)


def _usual_problem(family: Family, start: Start, seed: int) -> BatchSizeProblem:
    draw = _Draws(seed_from(f"truth {family.value} {seed}"))
    sizes = draw.sizes()
    fitting = len(sizes) if family is not Family.CLIFF else max(3, round(draw.between(0.5, 0.8) * len(sizes)))
    truth = _SHAPES[family](draw, fitting)
    lowest = min(truth)
    cheapest_j = math.exp(draw.between(math.log(0.1), math.log(1e7)))
    costs = [cheapest_j * math.exp(each - lowest) for each in truth]
    runs = draw.runs(sizes)
    means = {size: sum(runs[size]) / RUNS for size in sizes}
    epoch_s = {size: cost / means[size] / _POWER_W for size, cost in zip(sizes, costs, strict=False)}
    infeasible = frozenset(sizes[fitting:])
    return BatchSizeProblem(
        workload=Workload(
            dataset=f"{family.value}-{start.value}",
            network="made",
            optimizer=f"seed-{seed}",
            target_metric=TARGET,
            max_epochs=_max_epochs(runs),
            default_batch_size=_default(start, sizes, truth),
        ),
        gpu=GPU,
        max_power_w=_POWER_W,
        runs=runs,
        epochs={
            size: (
                MeasuredEpoch(
                    power_limit_w=_POWER_W, time_s=epoch_s.get(size, epoch_s[sizes[0]]), average_power_w=_POWER_W
                ),
            )
            for size in sizes
        },
        infeasible=infeasible,
    )


def _on_other_gpu(problem: BatchSizeProblem, draw: _Draws) -> BatchSizeProblem:
    """The same trainings where epochs cost something else."""
    level, slope = draw.between(math.log(0.2), math.log(5.0)), 0.1 * draw.normal()
    cosine, sine = 0.1 * draw.normal(), 0.1 * draw.normal()
    power_w = draw.between(0.5, 4.0) * _POWER_W
    epochs = {}
    for size, place in zip(problem.batch_sizes, _places(len(problem.batch_sizes)), strict=True):
        wave = cosine * math.cos(math.pi * place) + sine * math.sin(math.pi * place)
        factor = math.exp(level + slope * _octaves(problem, size) + wave)
        cost_j = problem.unlimited_price(size).energy_j * factor
        epochs[size] = (MeasuredEpoch(power_limit_w=power_w, time_s=cost_j / power_w, average_power_w=power_w),)
    return replace(problem, gpu=OTHER_GPU, max_power_w=power_w, epochs=epochs)


def _with_target(problem: BatchSizeProblem, target_metric: float, draw: _Draws) -> BatchSizeProblem:
    """The same trainings to another target."""
    exponent, per_octave = draw.between(0.5, 1.5), draw.between(-0.05, 0.05)
    harder = (1.0 - TARGET) / (1.0 - target_metric)
    runs = {}
    for size, of_size in problem.runs.items():
        factor = math.pow(harder, exponent + per_octave * _octaves(problem, size))
        runs[size] = tuple(max(1, round(epochs * factor)) for epochs in of_size if epochs is not None)
    workload = replace(problem.workload, target_metric=target_metric, max_epochs=_max_epochs(runs))
    return replace(problem, workload=workload, runs=runs)


def _octaves(problem: BatchSizeProblem, size: int) -> float:
    """How far a batch size is from the middle."""
    return math.log2(size / math.sqrt(problem.batch_sizes[0] * problem.batch_sizes[-1]))


def _max_epochs(runs: Mapping[int, Sequence[int]]) -> int:
    """Four times what the slowest batch size takes."""
    return math.ceil(4.0 * max(sum(of_size) / RUNS for of_size in runs.values()))


class _Draws:
    """The parameters of one problem, drawn one after the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._number = 0

    def between(self, low: float, high: float) -> float:
        """Uniform."""
        self._number += 1
        return low + (high - low) * uniform(self._seed, 0, self._number)

    def normal(self) -> float:
        """Standard normal."""
        self._number += 1
        return standard_normal(self._seed, 0, self._number)

    def sizes(self) -> tuple[int, ...]:
        """6 to 10 batch sizes, each twice the one before."""
        first, count = int(self.between(3.0, 6.0)), int(self.between(6.0, 11.0))
        return tuple(1 << octave for octave in range(first, first + count))

    def runs(self, sizes: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Epochs of each run: e (1 + (b / b0)^p) in the middle, lognormal about that."""
        least, exponent = self.between(4.0, 12.0), self.between(0.4, 1.0)
        bend = sizes[0] * math.pow(sizes[-1] / sizes[0], self.between(0.3, 1.2))
        deviation = self.between(0.05, 0.25)
        return {
            size: tuple(
                max(
                    1,
                    round(
                        least
                        * (1.0 + math.pow(size / bend, exponent))
                        * math.exp(deviation * standard_normal(self._seed, run, size))
                    ),
                )
                for run in range(1, RUNS + 1)
            )
            for size in sizes
        }


def _falling(draw: _Draws, count: int) -> list[float]:
    depth, exponent = draw.between(0.4, 1.2), draw.between(0.7, 2.0)
    return [depth * math.pow(1.0 - place, exponent) for place in _places(count)]


def _rising(draw: _Draws, count: int) -> list[float]:
    return _falling(draw, count)[::-1]


def _flat(draw: _Draws, count: int) -> list[float]:
    return [draw.between(0.0, 0.04) for _ in range(count)]


def _valley(draw: _Draws, count: int) -> list[float]:
    depth, optimum = draw.between(0.4, 1.2), draw.between(0.25, 0.75)
    return [depth * ((place - optimum) / max(optimum, 1.0 - optimum)) ** 2 for place in _places(count)]


def _two_valleys(draw: _Draws, count: int) -> list[float]:
    left, right = draw.between(0.1, 0.25), draw.between(0.75, 0.9)
    ridge, second = draw.between(0.3, 0.7), draw.between(0.05, 0.22)
    left_j, right_j = (0.0, second) if draw.between(0.0, 1.0) < 0.5 else (second, 0.0)
    steepness = ridge / (0.5 * (right - left)) ** 2
    return [
        min(left_j + steepness * (place - left) ** 2, right_j + steepness * (place - right) ** 2)
        for place in _places(count)
    ]


_SHAPES: dict[Family, Callable[[_Draws, int], list[float]]] = {
    Family.FALLING: _falling,
    Family.RISING: _rising,
    Family.FLAT: _flat,
    Family.VALLEY: _valley,
    Family.TWO_VALLEYS: _two_valleys,
    Family.CLIFF: _falling,
}


def _places(count: int) -> list[float]:
    return [place / (count - 1) for place in range(count)]


def _default(start: Start, sizes: Sequence[int], truth: Sequence[float]) -> int:
    fitting = sizes[: len(truth)]
    if start is Start.MIDDLE:
        return fitting[len(fitting) // 2]
    by_cost = sorted(zip(truth, fitting, strict=True))
    return by_cost[0 if start is Start.CHEAPEST else -1][1]
