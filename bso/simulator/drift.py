"""Drift: what changes while a job recurs.

The grammar, parts separated by commas::

    epochs:xF[@N]        epochs to the target times F, from recurrence N on (1, the first, unless said)
    epoch-cost:xF[@N]    time and energy of an epoch times F
    epochs:+P%[@N]       growth by P percent with every recurrence after N; -P% shrinks
    epoch-cost:+P%[@N]
    optimum[@N]          the epochs of the i-th smallest batch size become those of the i-th largest
    optimum:+K[@N]       each batch size takes the epochs of the one K places below it, the first ones those of the
                         smallest, so that the optimum moves up; optimum:-K moves it down
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from bso.simulator.errors import InvalidSimulation

GRAMMAR = "epochs:x2.5@50, epoch-cost:x2.5@50, epochs:+1%, epoch-cost:-1%@20, optimum@50, optimum:+2@50"
_CHANGE = re.compile(
    r"(?P<what>epochs|epoch-cost):(?:x(?P<factor>[\d.]+)|(?P<percent>[+-][\d.]+)%)(?:@(?P<start>\d+))?"
)
_MIRRORED = re.compile(r"optimum(?:@(?P<start>\d+))?")
_SHIFTED = re.compile(r"optimum:(?P<places>[+-]\d{1,3})(?:@(?P<start>\d+))?")
_MOST = 1e6


class Drifting(Enum):
    """What a change is a change of."""

    EPOCHS = "epochs"  # how many epochs a training takes to its target
    EPOCH_COST = "epoch-cost"  # time and energy of an epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A factor that applies once from recurrence ``start`` on, or again with every recurrence after it."""

    what: Drifting
    factor: float
    start: int = 1
    is_gradual: bool = False

    def at(self, recurrence: int) -> float:
        """The factor at a recurrence (1, 2, ...)."""
        if recurrence < self.start:
            return 1.0
        if not self.is_gradual:
            return self.factor
        return min(max(self.factor ** (recurrence - self.start), 1 / _MOST), _MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """From recurrence ``start`` on each batch size takes the epochs of the one so many ``places`` below it."""

    places: int
    start: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """All that changes. ``mirrored_from`` are the recurrences at which the optimum moves over, and moves back."""

    changes: tuple[Change, ...] = ()
    mirrored_from: tuple[int, ...] = ()
    shifts: tuple[Shift, ...] = ()

    @property
    def starts(self) -> frozenset[int]:
        """The recurrences (1, 2, ...) that are the first ones to be different by some part of it."""
        of_changes = (change.start + change.is_gradual for change in self.changes)
        return frozenset((*of_changes, *self.mirrored_from, *(shift.start for shift in self.shifts)))

    def epochs_factor(self, recurrence: int) -> float:
        """How many times longer a training takes to its target."""
        return self._factor(Drifting.EPOCHS, recurrence)

    def epoch_cost_factor(self, recurrence: int) -> float:
        """How many times more time and energy an epoch takes."""
        return self._factor(Drifting.EPOCH_COST, recurrence)

    def is_mirrored(self, recurrence: int) -> bool:
        """Whether the batch sizes have changed their places."""
        return sum(recurrence >= start for start in self.mirrored_from) % 2 == 1

    def places(self, recurrence: int) -> int:
        """By how many batch sizes the optimum has moved up."""
        return sum(shift.places for shift in self.shifts if recurrence >= shift.start)

    def _factor(self, what: Drifting, recurrence: int) -> float:
        product = 1.0
        for change in self.changes:
            if change.what is what:
                product *= change.at(recurrence)
        return product


NO_DRIFT = Drift()


def parse_drift(text: str) -> Drift:
    """Read the grammar above; an empty text is no drift. Raises InvalidSimulation, which shows the grammar."""
    changes: list[Change] = []
    mirrored: list[int] = []
    shifts: list[Shift] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if found := _MIRRORED.fullmatch(part):
            mirrored.append(_start(part, found["start"]))
        elif found := _SHIFTED.fullmatch(part):
            shifts.append(Shift(places=int(found["places"]), start=_start(part, found["start"])))
        elif found := _CHANGE.fullmatch(part):
            changes.append(_change(part, found))
        else:
            raise InvalidSimulation(f"drift {part!r} is not understood; examples are {GRAMMAR}")
    return Drift(changes=tuple(changes), mirrored_from=tuple(mirrored), shifts=tuple(shifts))


def _change(part: str, found: re.Match[str]) -> Change:
    try:
        factor = float(found["factor"]) if found["factor"] else 1 + float(found["percent"]) / 100
    except ValueError as error:
        raise InvalidSimulation(f"drift {part!r} holds no number; examples are {GRAMMAR}") from error
    if not 1 / _MOST <= factor <= _MOST:
        raise InvalidSimulation(f"drift {part!r} must multiply by {1 / _MOST:g} to {_MOST:g}, got {factor:g}")
    return Change(
        what=Drifting(found["what"]),
        factor=factor,
        start=_start(part, found["start"]),
        is_gradual=found["percent"] is not None,
    )


def _start(part: str, text: str | None) -> int:
    start = 1 if text is None else int(text)
    if start < 1:
        raise InvalidSimulation(f"drift {part!r} must begin at recurrence 1 or later, got {start}")
    return start
