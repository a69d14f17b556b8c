"""What a training with the default batch size takes in each month, also in those in which none has run.

It is estimated from all converged trainings with that batch size on the same hardware kind and in the same version.
Since costs drift, those of other months are moved by what the costs of the same batch sizes have done in between:
month by month, the mean change of those that have converged before, weighted by their variances, and shrunk to none
where it is not larger than its error (c^2 / (c^2 + error^2)). Nobody knows whether the default has changed as much as
others: half of the change counts as an error. So the interval widens where the default no longer runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bso.domain.ledger import OTHER_SIZES, UNKNOWN, LedgerEntry, PowerChoice, Sums

UNKNOWN_SPREAD = 0.3
"""How much trainings alike are taken to differ before anybody has seen it: it counts as much as one more training."""
ERRORS_IN_INTERVAL = 2.0
"""An interval of 95 % reaches so many standard errors to both sides."""
_LEAST = 1e-9  # [J, s]: a training that took less says nothing
_MOST_LOG = 60.0
_MOST_RATIO = 1e3  # between two power limits; more is no measurement

Cell = tuple[int, str]
"""Change points before, and month: within a cell costs are taken to be the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertain:
    """An estimated quantity and its standard error, in its own unit."""

    value: float
    error: float

    @property
    def half_interval(self) -> float:
        """How far an interval of about 95 % reaches to both sides."""
        return ERRORS_IN_INTERVAL * self.error

    def times(self, factor: float) -> Uncertain:
        """A multiple of it."""
        return Uncertain(value=self.value * factor, error=self.error * abs(factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What the converged trainings of one entry took [J or s]: in which cell, with which batch size, how many."""

    cell: Cell
    batch_size: int
    count: int
    sums: Sums

    @property
    def mean(self) -> float:
        """What one of them took."""
        return self.sums.total / self.count


def models_of(entries: Iterable[LedgerEntry], power: Mapping[int, PowerChoice]) -> tuple[list[Models], list[Models]]:
    """The energies [J] and the times [s] of models, at full power."""
    energies, times = list[Models](), list[Models]()
    for entry in entries:
        more, slower = _at_full_power(entry, power)
        for found, count, sums, factor in (
            (energies, entry.measured_models, entry.model_energy, more),
            (times, entry.models, entry.model_time, slower),
        ):
            if count and sums.total * factor / count > _LEAST:
                scaled = Sums(total=sums.total * factor, squares=sums.squares * factor * factor)
                found.append(Models(cell=cell_of(entry), batch_size=entry.batch_size, count=count, sums=scaled))
    return energies, times


def cell_of(entry: LedgerEntry) -> Cell:
    """Where an entry's costs belong."""
    return entry.change_points, entry.month


def usual(known: Sequence[Models], wanted: Iterable[tuple[Cell, int]]) -> Mapping[tuple[Cell, int], Uncertain]:
    """Estimates of what one training takes, by cell and batch size; where no training converged there is none."""
    asked = sorted({*wanted})
    variance = _variance(known)
    levels = _levels(sorted({*(cell for cell, _ in asked), *(one.cell for one in known)}), known, variance)
    found: dict[tuple[Cell, int], Uncertain] = {}
    for cell, batch_size in asked:
        rated = [
            _moved(one, levels[one.cell], levels[cell], variance)
            for one in known
            if one.batch_size == batch_size != UNKNOWN and levels[one.cell].segment == levels[cell].segment
        ]
        if rated:
            mean, deviation = _weighted(rated)
            value = math.exp(min(max(mean, -_MOST_LOG), _MOST_LOG))
            found[cell, batch_size] = Uncertain(value=value, error=value * deviation)
    return found


def _at_full_power(entry: LedgerEntry, power: Mapping[int, PowerChoice]) -> tuple[float, float]:
    """How many times as much energy and time models would have taken under the highest power limit.

    By what was measured, if their power was nearer to that at the limit of the lowest cost than at the highest one.
    """
    choice = power.get(entry.batch_size)
    is_known = entry.measured_models and entry.measured_models == entry.models and entry.model_time.total > _LEAST
    if choice is None or not is_known:
        return 1.0, 1.0
    highest, chosen = choice.highest, choice.chosen
    power_w = entry.model_energy.total / entry.model_time.total
    if power_w >= highest.average_power_w / 2.0 + chosen.average_power_w / 2.0:
        return 1.0, 1.0
    slower = chosen.samples_per_s / highest.samples_per_s
    more = highest.average_power_w / chosen.average_power_w * slower
    if not all(1.0 / _MOST_RATIO < ratio < _MOST_RATIO for ratio in (slower, more)):
        return 1.0, 1.0
    return more, slower


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """By how much costs have changed since the first cell, in logarithms, and the variance of that.

    Cells of two segments have nothing in common.
    """

    log: float = 0.0
    variance: float = 0.0
    segment: int = 0


def _moved(one: Models, there: _Level, here: _Level, variance: float) -> tuple[float, float]:
    """What models say of a training in another cell: the logarithm of what it takes, and its variance."""
    moved = here.log - there.log
    error = abs(here.variance - there.variance) + (moved / 2.0) ** 2
    return math.log(one.mean) + moved, variance / one.count + error


def _levels(cells: Sequence[Cell], known: Sequence[Models], variance: float) -> Mapping[Cell, _Level]:
    """The level of each cell, in their order: from the batch sizes that converged both in it and before it."""
    of_cell: dict[Cell, list[Models]] = {}
    for one in known:
        if one.batch_size != OTHER_SIZES:
            of_cell.setdefault(one.cell, []).append(one)
    levels: dict[Cell, _Level] = {}
    last: dict[int, Models] = {}
    level, change_points = _Level(), cells[0][0] if cells else 0
    for cell in cells:
        here = of_cell.get(cell, [])
        seen = [
            (
                math.log(one.mean / before.mean) + levels[before.cell].log - level.log,
                variance / one.count + variance / before.count,
            )
            for one in here
            if (before := last.get(one.batch_size)) is not None and levels[before.cell].segment == level.segment
        ]
        if seen:
            change, error = _weighted(seen)
            kept = change**2 / (change**2 + error**2)
            level = _Level(
                log=level.log + kept * change, variance=level.variance + kept * error**2, segment=level.segment
            )
        elif here and cell[0] != change_points:
            level = _Level(segment=level.segment + 1)
        change_points = cell[0] if here else change_points
        levels[cell] = level
        last |= {one.batch_size: one for one in here}
    return levels


def _variance(known: Iterable[Models]) -> float:
    """The relative variance of trainings alike: same batch size, same cell."""
    squares, degrees = UNKNOWN_SPREAD**2, 1
    for one in known:
        if one.batch_size != OTHER_SIZES:
            squares += max(0.0, one.sums.squares / one.mean / one.mean - one.count)
            degrees += one.count - 1
    return squares / degrees


def _weighted(rated: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean of values with variances, each weighted by the inverse of its own, and the error of that mean."""
    weight = sum(1.0 / variance for _, variance in rated)
    return sum(value / variance for value, variance in rated) / weight, math.sqrt(1.0 / weight)
