"""Whether what is said of batch sizes is true as often as it should be, where costs vary from training to training."""

import math
from dataclasses import replace
from itertools import chain
from statistics import NormalDist

from bso.replay.what_if.history import record_of
from bso.replay.what_if.record import Record
from bso.simulator import BatchSizeProblem
from bso.simulator.noise import Noise
from bso.simulator.traces import MeasuredEpoch
from bso.simulator.world import World
from tests.unit.replay.recurring_job import folded
from tests.unit.simulator.problems import make

JOBS = 12
NOISE = 0.3
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)


def lengths(batch_size: int) -> tuple[int, ...]:
    """Epochs that vary by 8 %."""
    usual = NormalDist(math.log(4 + batch_size / 16), 0.08)
    return tuple(round(math.exp(usual.inv_cdf((k + 0.5) / 40))) for k in range(40))


def problem() -> BatchSizeProblem:
    """Batch sizes of which several cost nearly as much."""
    made = make({size: lengths(size) for size in SIZES}, default=8, max_epochs=300)
    epochs = {
        size: (MeasuredEpoch(power_limit_w=200.0, time_s=100.0 * size**-0.6, average_power_w=200.0),) for size in SIZES
    }
    return replace(made, epochs=epochs)


def true_costs() -> dict[int, float]:
    """Means of trainings, by batch size."""
    world = World(problem=problem(), seed=0, eta_knob=0.5)
    return {size: world.expected(size, 1).cost * math.exp(0.5 * NOISE**2) for size in SIZES}


def test_intervals_hold_the_true_mean_and_what_is_said_to_cost_more_does() -> None:
    """Nineteen in twenty should be true; a batch size that was stopped, or tried once, counts like all others."""
    records = [
        record_of(folded(problem(), recurrences=60, seed=seed, noise=Noise(run=NOISE), policy="curve"))
        for seed in range(JOBS)
    ]
    within = list(chain.from_iterable(map(held, records)))
    false = list(chain.from_iterable(map(false_claims, records)))
    assert len(within) > 5 * JOBS
    assert 0.88 <= sum(within) / len(within) < 1.0
    assert len(false) >= JOBS, "batch sizes that cost much more are known to"
    assert sum(false) <= 0.1 * len(false), "it is one in thirty of many more jobs"


def held(found: Record) -> list[bool]:
    """Of each batch size, whether its interval holds the truth."""
    true = true_costs()
    return [
        known.low <= true[size] <= known.high
        for size in found.tried_batch_sizes
        if (known := found.standing(size)) is not None
    ]


def false_claims(found: Record) -> list[bool]:
    """Of each that is said to cost more than the cheapest, whether that is false."""
    true, cheapest = true_costs(), found.cheapest
    assert cheapest is not None
    return [
        true[size] <= true[cheapest]
        for size in found.tried_batch_sizes
        if (known := found.standing(size)) is not None and known.is_higher
    ]
