"""What a trial says of epoch costs while it runs, and at its end. All that is fitted is written into the event."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bso.domain.progress import is_all_profiled, reports_of
from bso.domain.trial import Trial
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.cost_records import CostSurprises, EpochCostKnowledge, LearntEpochCost

_PROFILED_NOISE, _UNKNOWN_PROFILED_NOISE = 0.05**2, 0.15**2
_MOST = 3.0  # standard deviations: of a larger surprise no more is believed
_LIKELY = 0.5
_CHANGES = 0.02  # the share of runs with which all costs change
_MOST_DISTORTED = 100.0  # times what an ordinary epoch costs


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCostSeen:
    """ln of what an epoch of a trial cost [J]; where power limits were profiled in all of them, without that.

    ``noise`` is the variance that this, and so few reports, add to the one between runs. ``squares`` and ``freedom``
    are those of epoch costs between its reports, ``interval`` is the progress between two of them, in epochs.
    """

    value: float
    noise: float
    squares: float = 0.0
    freedom: float = 0.0
    interval: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCost:
    """What a running trial shows, in ln J: what its ``own`` epochs cost, and those of its batch size usually.

    ``rise`` is by how much the costs of all batch sizes seem to have risen.
    """

    own: float
    usual: float
    rise: float


def epoch_cost_seen(trial: Trial, costs: EpochCostKnowledge) -> EpochCostSeen:
    """What a trial that has reported a cost says of its epoch cost."""
    value, interval = math.log(trial.cost) - math.log(trial.epoch), trial.epoch / trial.reports
    if not is_all_profiled(trial.epoch, trial.profiled):
        reports, squares = max(reports_of(trial), 1.0), trial.cost_squares
        noise = costs.within_noise(squares, reports - 1.0) / reports
        return EpochCostSeen(value=value, noise=noise, squares=squares, freedom=reports - 1.0, interval=interval)
    if not costs.profiled:
        return EpochCostSeen(value=value, noise=_UNKNOWN_PROFILED_NOISE, interval=interval)
    return EpochCostSeen(value=value - math.log(costs.profiling_ratio), noise=_PROFILED_NOISE, interval=interval)


def running_cost(beliefs: Beliefs, costs: EpochCostKnowledge, batch_size: int, seen: EpochCostSeen) -> RunningCost:
    """What a running trial shows of costs.

    Where costs of its batch size are known, a surprise beyond all noise is taken for one of all batch sizes, as far as
    that is likelier than a spike. Where no epoch was paid for on the hardware kind, all is: their level is not known.
    """
    mean, variance = beliefs.epoch_cost(batch_size)
    total = variance + beliefs.cost_noise + seen.noise
    surprise, rise = seen.value - mean, 0.0
    if not costs.is_seen:
        rise = surprise
    elif costs.record(batch_size).is_known and surprise**2 > _MOST**2 * total:
        rise = (
            surprise**3 / (surprise**2 + total) * _CHANGES / (_CHANGES + (costs.spike_rate if surprise > 0.0 else 0.0))
        )
    left = surprise - rise
    return RunningCost(
        own=mean + rise + left * (variance + beliefs.cost_noise) / total,
        usual=mean + rise + left * variance / total,
        rise=rise,
    )


def learnt_cost(
    beliefs: Beliefs, costs: EpochCostKnowledge, batch_size: int, seen: EpochCostSeen, *, profiling_ratio: float | None
) -> LearntEpochCost:
    """What an ended trial says of epoch costs.

    The runs around it distinguish noise, spikes and changes: the surprise of one run is limited, and those of several
    runs add up.
    """
    mean, variance = beliefs.epoch_cost(batch_size)
    noise = beliefs.cost_noise
    deviation = math.sqrt(variance + noise + seen.noise)
    surprise = (seen.value - mean) / deviation
    believed = min(max(surprise, -_MOST), _MOST)
    sums, surprises = costs.record(batch_size).sums, costs.surprises
    is_alike = abs(seen.value - sums.mean) < _MOST * math.sqrt(2.0 * (noise + seen.noise))
    is_suspected = beliefs.spike_probability(batch_size) > _LIKELY
    is_comparable = costs.record(batch_size).is_known and not (is_suspected and is_alike)
    is_far = is_comparable and surprise > _MOST
    after = surprises.after_another()
    if is_comparable:
        after = surprises.after_run(believed, costs.spike_rate, is_spike=is_far)
    moved = after.changed_for if is_comparable else 0
    forgets = is_suspected and not is_alike and not moved and seen.value < sums.mean
    trusted = mean + believed * deviation if is_comparable and not moved else seen.value
    weight, held = noise / (noise + seen.noise), sums.weight
    square = (trusted - sums.mean) ** 2 * held * weight / (held + weight) if held else None
    return LearntEpochCost(
        value=seen.value,
        trusted=trusted,
        weight=weight,
        square=None if forgets or moved or not is_comparable else square,
        surprises=CostSurprises() if moved else after,
        moved=moved,
        shift=_shift(beliefs, costs) if moved else 0.0,
        is_spike=not moved and (forgets or is_far),
        forgets=forgets,
        profiling_ratio=profiling_ratio,
        within_squares=seen.squares,
        within_freedom=seen.freedom,
        interval=seen.interval,
    )


def profiling_ratio(trial: Trial) -> float | None:
    """What a profiled epoch took more time and energy than an ordinary one of the trial: the mean of both ratios.

    None: it has none of one of both.
    """
    if not trial.profiled.epochs or is_all_profiled(trial.epoch, trial.profiled):
        return None
    ordinary = trial.epoch - trial.profiled.epochs
    ratios = [
        (profiled / trial.profiled.epochs) / ((total - profiled) / ordinary)
        for profiled, total in (
            (trial.profiled.time_s, trial.time_s),
            (trial.profiled.energy_j, trial.energy_j),
        )
        if total > profiled > 0.0
    ]
    ratio = sum(ratios) / len(ratios) if ratios else 1.0
    return min(max(ratio, 1.0 / _MOST_DISTORTED), _MOST_DISTORTED)


def _shift(beliefs: Beliefs, costs: EpochCostKnowledge) -> float:
    """By how much what was seen before an earlier change is below what is believed now, on the mean."""
    before = {size: record.before for size, record in costs.records.items() if record.before.weight}
    total = sum(sums.weight for sums in before.values())
    if not total:
        return 0.0
    return sum(sums.weight * (beliefs.epoch_cost(size)[0] - sums.mean) for size, sums in before.items()) / total
