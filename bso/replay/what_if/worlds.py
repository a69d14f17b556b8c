"""Problems for the simulator, made of recorded trainings: one for each seed, from trainings drawn again.

The bootstrap of Efron (1981) for censored data: a batch size's trainings, stopped ones included, are drawn with
replacement, one fewer than there are, so that the mean of the drawn ones varies as much as a mean is estimated to (Rao
and Wu, "Resampling inference with complex survey data", JASA 1988).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from statistics import median

from bso.domain.randomness import seed_from, uniform
from bso.replay.what_if.lasting import Lasted, Tail, distribution_of, equally_likely
from bso.replay.what_if.recorded import End, Record, RecordedRun
from bso.simulator import Problem, Workload
from bso.simulator.problem import EpochPrice
from bso.simulator.traces import MeasuredEpoch

_MOST_STEPS = 200
"""Reports in a simulated training of the usual length, at most: finer ones only take time."""
_NOTHING = 1e-9


def step_of(record: Record) -> float:
    """The progress [epochs] between two reports of a simulated training; 1 where trainings report every epoch.

    It is that of the batch size which reports most often, and at least a two-hundredth of the usual training of the one
    that takes longest.
    """
    intervals: list[float] = []
    lengths: list[float] = []
    for size in record.known_batch_sizes:
        runs = record.runs_of(size)
        intervals.append(median(run.epochs / run.reports for run in runs if run.end is not End.FAILED))
        lengths.append(median(run.epochs for run in runs if run.end is End.CONVERGED))
    finest = min(intervals)
    return max(1.0 if math.isclose(finest, 1.0) else finest, max(lengths) / _MOST_STEPS)


def world(
    record: Record, batch_sizes: Sequence[int], default_batch_size: int, *, seed: int, tail: Tail, step: float
) -> Problem:
    """A problem in which an epoch is a step: what trainings take if those that were recorded are typical.

    ``batch_sizes`` must be known. The same seed draws the same trainings of a batch size, whichever others there are.
    """
    limit = math.ceil(record.spec.max_epochs / step - _NOTHING)
    drawn = {size: _drawn(record.runs_of(size), seed, size) for size in batch_sizes}
    return Problem(
        workload=Workload(
            dataset=record.job_id,
            network="",
            optimizer="",
            target_metric=record.spec.target_metric,
            max_epochs=limit,
            default_batch_size=default_batch_size,
            higher_is_better_metric=record.spec.higher_is_better_metric,
        ),
        gpu=record.hardware.gpu_model,
        max_power_w=record.hardware.max_power_w,
        runs={size: _lasting(runs, tail, step, limit) for size, runs in drawn.items()},
        epochs={size: _measured(record, size, runs, step) for size, runs in drawn.items()},
    )


def epoch_price(record: Record, batch_size: int) -> EpochPrice:
    """What an epoch of a known batch size took in the mean [s, J], as it was recorded; 0 J where that was not."""
    return _price(record.runs_of(batch_size), usual=EpochPrice(time_s=0.0, energy_j=0.0))


def _drawn(runs: Sequence[RecordedRun], seed: int, batch_size: int) -> list[RecordedRun]:
    """Drawn again until one of them converges: that some do is known."""
    luck = seed_from(f"{seed}/recorded trainings")
    numbers = count(1)
    while True:
        picks = [uniform(luck, next(numbers), batch_size) for _ in runs[1:]]
        drawn = [runs[int(pick * len(runs))] for pick in picks]
        if any(run.end is End.CONVERGED for run in drawn):
            return drawn


def _lasting(runs: Sequence[RecordedRun], tail: Tail, step: float, limit: int) -> tuple[int | None, ...]:
    observed = [_lasted(run, step, limit) for run in runs]
    return equally_likely(distribution_of(observed), tail, limit=limit, observations=len(observed))


def _lasted(run: RecordedRun, step: float, limit: int) -> Lasted:
    """In whole steps, of which ``limit`` reach max_epochs or a little more, as a last report does.

    A training that failed had all of them. One that was stopped had at least one more before it.
    """
    steps = run.epochs / step
    if run.end is End.CONVERGED:
        return Lasted(steps=min(max(1, math.ceil(steps - _NOTHING)), limit), is_reached=True)
    if run.end is End.FAILED:
        return Lasted(steps=limit, is_reached=False)
    return Lasted(steps=min(math.floor(steps + _NOTHING), limit - 1), is_reached=False)


def _measured(record: Record, batch_size: int, runs: Sequence[RecordedRun], step: float) -> tuple[MeasuredEpoch, ...]:
    """A step under each power limit that was profiled; under one that has no name where none was, or no energy known.

    The recorded trainings ran under the limit that was best by the job's own eta_knob; what the others would have
    taken is in proportion to what was measured when they were profiled.
    """
    price = _price(runs, usual=epoch_price(record, batch_size)).scaled(step)
    measurements = record.measurements.get(batch_size, ())
    if not measurements or not price.energy_j:
        return (_epoch(record.hardware.max_power_w, price),)
    profiled = {
        one.power_limit_w: EpochPrice(time_s=1 / one.samples_per_s, energy_j=one.average_power_w / one.samples_per_s)
        for one in measurements
    }
    eta, most = record.spec.eta_knob, record.hardware.max_power_w
    best = min(profiled.values(), key=lambda sample: sample.cost(eta_knob=eta, max_power_w=most))
    return tuple(
        _epoch(
            limit,
            EpochPrice(
                time_s=price.time_s * sample.time_s / best.time_s,
                energy_j=price.energy_j * sample.energy_j / best.energy_j,
            ),
        )
        for limit, sample in sorted(profiled.items())
    )


def _epoch(power_limit_w: float, price: EpochPrice) -> MeasuredEpoch:
    return MeasuredEpoch(
        power_limit_w=power_limit_w, time_s=price.time_s, average_power_w=price.energy_j / price.time_s
    )


def _price(runs: Sequence[RecordedRun], *, usual: EpochPrice) -> EpochPrice:
    """The mean of these trainings; the usual time or energy where none of them tells of it."""
    timed = sum(run.priced_epochs for run in runs)
    metered = sum(run.priced_epochs for run in runs if run.is_energy_measured)
    return EpochPrice(
        time_s=sum(run.time_s for run in runs) / timed if timed else usual.time_s,
        energy_j=sum(run.energy_j for run in runs) / metered if metered else usual.energy_j,
    )
