"""What a trial's end says of epoch costs. All that is fitted here is written into the event."""

from __future__ import annotations

import math

from bso.domain.progress import is_all_profiled
from bso.domain.trial import Trial
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.cost_records import CostSurprises, EpochCostKnowledge, LearntEpochCost
from bso.policies.curve.view import EpochCostSeen

_MOST = 3.0  # standard deviations: of a larger surprise no more is believed
_LIKELY = 0.5
_MOST_DISTORTED = 100.0  # times what an ordinary epoch costs


def learnt_cost(
    beliefs: Beliefs, costs: EpochCostKnowledge, batch_size: int, seen: EpochCostSeen, *, profiling_ratio: float | None
) -> LearntEpochCost:
    """What an ended trial says of epoch costs.

    The runs around it distinguish noise, spikes and changes: the surprise of one run is limited, and those of several
    runs add up.
    """
    belief = beliefs.of(batch_size)
    mean, noise = belief.epoch_cost, belief.cost_noise
    deviation = math.sqrt(belief.epoch_cost_variance + noise + seen.noise)
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
    return sum(sums.weight * (beliefs.of(size).epoch_cost - sums.mean) for size, sums in before.items()) / total
