"""What the oracle and the default would have paid, with the same luck as the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bso.simulator.problem import EpochPrice
from bso.simulator.run import Baseline
from bso.simulator.world import ExpectedCost, World


def oracle(world: World, lengths: Sequence[float]) -> Baseline:
    """The batch size that is best on the average, at its best power limit; a failed run is paid to max_epochs.

    ``lengths`` scale the time and energy of each recurrence.
    """
    return _baseline(world, lengths, world.best_batch_size, world.price, world.expected)


def default(world: World, lengths: Sequence[float]) -> Baseline | None:
    """The default batch size at the largest power limit; None where it does not always converge in the end."""
    size = world.problem.default_batch_size
    if any(math.isinf(world.expected(size, number).cost) for number in range(1, len(lengths) + 1)):
        return None
    return _baseline(world, lengths, lambda _: size, world.unlimited_price, world.expected_unlimited)


def _baseline(
    world: World,
    lengths: Sequence[float],
    chosen: Callable[[int], int],
    price: Callable[[int, int], EpochPrice],
    expected: Callable[[int, int], ExpectedCost],
) -> Baseline:
    runs: dict[int, int] = {}
    sizes: list[int] = []
    costs: list[float] = []
    means: list[ExpectedCost] = []
    for recurrence, length in enumerate(lengths, start=1):
        size = chosen(recurrence)
        epochs = 0.0
        needed = None
        while needed is None:
            run = runs[size] = runs.get(size, 0) + 1
            needed = world.epochs_to_target(size, run, recurrence)
            trained = world.max_epochs(recurrence) if needed is None else needed
            epochs += world.noisy_epochs(size, run, recurrence, trained)
        sizes.append(size)
        costs.append(world.cost(price(size, recurrence), recurrence) * epochs * length)
        means.append(expected(size, recurrence))
    scaled = list(zip(means, lengths, strict=True))
    return Baseline(
        batch_sizes=tuple(sizes),
        costs=tuple(costs),
        mean_costs=tuple(mean.cost * length for mean, length in scaled),
        mean_times_s=tuple(mean.time_s * length for mean, length in scaled),
        mean_energies_j=tuple(mean.energy_j * length for mean, length in scaled),
    )
