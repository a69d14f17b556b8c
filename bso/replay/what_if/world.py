"""Recorded trainings as a problem for the simulator: one for each seed, from trainings that are drawn again.

The bootstrap of Efron (1981) for censored data: a batch size's trainings, stopped ones included, are drawn with
replacement, one fewer than there are, so that the mean of the drawn ones varies as much as a mean is estimated to (Rao
and Wu, "Resampling inference with complex survey data", JASA 1988). Where a single training has converged, its own luck
and that of others are drawn from the spread that all batch sizes have in common. What an epoch costs varies from
training to training of a life by as much as was seen.

A stopped training takes as long as one that lasted longer, drawn among all of those: Efron's reading ("The two sample
problem with censored data", 1967) of the product-limit estimator of Kaplan and Meier (JASA 1958). That it was stopped
is taken to say nothing of how much longer it would have taken, as is true of bounds on its cost and of preemptions.
Where none lasted longer, one step more would have done in one half of the seeds, and in the other it would never have
got there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from statistics import median

from bso.domain.randomness import seed_from, standard_normal, uniform
from bso.replay.what_if.record import End, Record, RecordedRun
from bso.simulator import BatchSizeProblem, Workload
from bso.simulator.noise import Noise
from bso.simulator.problem import EpochPrice
from bso.simulator.traces import MeasuredEpoch
from bso.simulator.workloads import USUAL_SAMPLES

_MOST_STEPS = 200
"""Reports in a simulated training of the usual length, at most: finer ones only take time."""
_COPIES = 20
"""Trainings that stand for a single one."""
_NOTHING = 1e-9


def step_of(record: Record) -> float:
    """The progress [epochs] between two reports of a simulated training; 1 where trainings report every epoch.

    It is that of the batch size which reports most often, and at least a two-hundredth of the usual training of the one
    that takes longest.
    """
    runs = [run for run in record.runs if run.end is not End.FAILED]
    sizes = {run.batch_size for run in runs if run.end is End.CONVERGED}
    finest = min(median(run.epochs / run.reports for run in runs if run.batch_size == size) for size in sizes)
    longest = max(
        median(run.epochs for run in runs if run.batch_size == size and run.end is End.CONVERGED) for size in sizes
    )
    return max(1.0 if math.isclose(finest, 1.0) else finest, longest / _MOST_STEPS)


def world(record: Record, batch_sizes: Iterable[int], default_batch_size: int, *, seed: int) -> BatchSizeProblem:
    """A problem in which an epoch is a step: what trainings take if those that were recorded are typical.

    ``batch_sizes`` must be known, and some training must have converged. The same seed draws the same trainings of a
    batch size, whichever others there are.
    """
    step = step_of(record)
    limit = math.ceil(record.spec.max_epochs / step - _NOTHING)
    drawn = {size: _drawn(record, size, seed) for size in batch_sizes}
    epochs = {size: _measured(record, size, runs, step) for size, runs in drawn.items() if runs}
    return BatchSizeProblem(
        workload=Workload(
            dataset=record.job_id,
            network="",
            optimizer="",
            target_metric=record.spec.target_metric,
            max_epochs=limit,
            default_batch_size=default_batch_size,
            higher_is_better_metric=record.spec.higher_is_better_metric,
            samples=_samples(record, epochs),
        ),
        gpu=record.hardware.gpu_model,
        max_power_w=record.hardware.max_power_w,
        runs={size: _lengths(runs, step, limit, seed, size) if runs else (None,) for size, runs in drawn.items()},
        # What does not fit in memory ends at its first step, and its price is not paid.
        epochs={size: epochs.get(size) or next(iter(epochs.values())) for size in drawn},
        infeasible=frozenset(size for size in drawn if size in record.infeasible),
    )


def cost_noise(record: Record) -> Noise:
    """By how much what an epoch costs differs from training to training: as was seen, else as is usual.

    ``world`` makes epochs cheaper by so much that they cost with this noise what they cost in the mean.
    """
    seen = record.seen_cost_spread
    return Noise(run=(seen if seen.freedom else record.cost_spread).deviation)


def _samples(record: Record, epochs: Mapping[int, Sequence[MeasuredEpoch]]) -> int:
    """What a step trains on: how many samples a second were measured under a power limit, times what it takes there."""
    found = [
        measured.samples_per_s * epoch.time_s
        for size, of_size in epochs.items()
        for measured in record.measurements.get(size, ())
        for epoch in of_size
        if epoch.power_limit_w == measured.power_limit_w
    ]
    return max(1, round(median(found))) if found else USUAL_SAMPLES


def _drawn(record: Record, batch_size: int, seed: int) -> list[RecordedRun]:
    """A batch size's trainings, drawn again until one of them converges where that some do is known."""
    runs = () if batch_size in record.infeasible else record.runs_of(batch_size)
    if record.count(batch_size, End.CONVERGED) < 2:
        return [run for place, one in enumerate(runs) for run in _copies(one, record, seed, place)]
    luck, numbers = seed_from(f"{seed}/recorded trainings"), count(1)
    while True:
        drawn = [runs[int(uniform(luck, next(numbers), batch_size) * len(runs))] for _ in runs[1:]]
        if any(run.end is End.CONVERGED for run in drawn):
            return drawn


def _copies(run: RecordedRun, record: Record, seed: int, place: int) -> list[RecordedRun]:
    """What a single training stands for: trainings of its batch size, in whose mean it may have been lucky or not.

    ``place`` is its number among those of its batch size, of which others may have been stopped.
    """
    deviation = cost_noise(record).run
    price_luck = standard_normal(seed_from(f"{seed}/prices of single trainings"), place, run.batch_size)
    price = math.exp(deviation * price_luck - 0.5 * deviation**2)
    run = replace(run, time_s=run.time_s * price, energy_j=run.energy_j * price)
    if run.end is not End.CONVERGED:
        return [run] * _COPIES
    luck = seed_from(f"{seed}/single trainings")
    own = standard_normal(luck, 0, run.batch_size)
    copies = []
    for number in range(1, _COPIES + 1):
        spread = record.epochs_spread.deviation * (standard_normal(luck, number, run.batch_size) - own)
        epochs = run.epochs * math.exp(spread)
        end = End.CONVERGED if epochs <= record.spec.max_epochs else End.FAILED
        copies.append(replace(run, end=end, epochs=min(epochs, record.spec.max_epochs)))
    return copies


def _lengths(
    runs: Sequence[RecordedRun], step: float, limit: int, seed: int, batch_size: int
) -> tuple[int | None, ...]:
    """The steps that trainings take, each as likely as the others; None: never within ``limit``."""
    ordered = sorted((_steps(run, step, limit), run.end is not End.CONVERGED, run.end.value) for run in runs)
    last = max((place for place, (_, is_open, _) in enumerate(ordered) if not is_open), default=-1)
    is_short = uniform(seed_from(f"{seed}/longest trainings"), 0, 0) < 0.5
    luck = seed_from(f"{seed}/stopped trainings")
    lengths: list[int | None] = [None] * len(ordered)
    for place in reversed(range(len(ordered))):
        steps, is_open, end = ordered[place]
        if not is_open:
            lengths[place] = steps
        elif place < last:
            after = len(ordered) - place - 1
            lengths[place] = lengths[place + 1 + int(uniform(luck, place, batch_size) * after)]
        elif end == End.CENSORED.value and is_short:
            lengths[place] = steps + 1
    return tuple(lengths)


def _steps(run: RecordedRun, step: float, limit: int) -> int:
    """In whole steps, of which ``limit`` reach max_epochs or a little more, as a last report does.

    A training that failed had all of them. One that was stopped had at least one more before it.
    """
    steps = run.epochs / step
    if run.end is End.CONVERGED:
        return min(max(1, math.ceil(steps - _NOTHING)), limit)
    return limit if run.end is End.FAILED else min(math.floor(steps + _NOTHING), limit - 1)


def _measured(record: Record, batch_size: int, runs: Sequence[RecordedRun], step: float) -> tuple[MeasuredEpoch, ...]:
    """A step under each power limit that was profiled; under one that has no name where none was, or no energy known.

    The recorded trainings ran under the limit that was best by the job's own eta_knob; what the others would have
    taken is in proportion to what was measured when they were profiled.
    """
    usual, found = record.price(record.runs_of(batch_size)), record.price(runs)
    assert usual is not None, "known batch sizes have a price"
    median_of_noise = math.exp(-0.5 * cost_noise(record).run ** 2)  # its mean is then 1
    time_s = (found or usual).time_s * step * median_of_noise
    energy_j = ((found and found.energy_j) or usual.energy_j) * step * median_of_noise
    profiled = {
        one.power_limit_w: EpochPrice(time_s=1 / one.samples_per_s, energy_j=one.average_power_w / one.samples_per_s)
        for one in record.measurements.get(batch_size, ())
    }
    eta, most = record.spec.eta_knob, record.hardware.max_power_w
    if not profiled or not energy_j:
        profiled = {most: EpochPrice(time_s=1.0, energy_j=1.0)}
    best = min(profiled.values(), key=lambda sample: sample.cost(eta_knob=eta, max_power_w=most))
    return tuple(
        MeasuredEpoch(
            power_limit_w=limit,
            time_s=time_s * sample.time_s / best.time_s,
            average_power_w=energy_j / time_s * (sample.energy_j / best.energy_j) / (sample.time_s / best.time_s),
        )
        for limit, sample in sorted(profiled.items())
    )
