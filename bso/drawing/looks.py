"""How each sort of thing is drawn: its class, its colour of the Okabe-Ito palette, and its shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bso.domain.trial import Outcome


class Shape(Enum):
    """What a mark looks like, its colour apart."""

    CIRCLE = auto()
    RING = auto()
    TRIANGLE = auto()
    SQUARE = auto()
    DIAMOND = auto()
    CROSS = auto()
    PLUS = auto()
    LINE = auto()
    DASHES = auto()
    DOTS = auto()
    BLOCK = auto()  # an area that covers what is behind it
    BAND = auto()  # an area that does not, without an outline
    BOX = auto()  # the same with an outline
    OPEN_BOX = auto()  # its outline alone, of dashes


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How one sort of thing is drawn; ``css_class`` is where a page finds it."""

    css_class: str
    colour: str
    shape: Shape


def _look(css_class: str, colour: str, shape: Shape) -> Look:
    return Look(css_class=css_class, colour=colour, shape=shape)


_BLUE, _SKY, _GREEN, _ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
_VERMILION, _PURPLE, _BLACK, _GREY = "#D55E00", "#CC79A7", "#000000", "#777777"

TEXT = _look("bso-text", "#333333", Shape.LINE)
GRID = _look("bso-grid", "#DDDDDD", Shape.LINE)
AXIS = _look("bso-axis", _GREY, Shape.LINE)
BACKGROUND = _look("bso-background", "#FFFFFF", Shape.BLOCK)

OUTCOMES = {
    Outcome.CONVERGED: _look("bso-outcome-converged", _GREEN, Shape.CIRCLE),
    Outcome.COST_EXCEEDED: _look("bso-outcome-cost_exceeded", _VERMILION, Shape.TRIANGLE),
    Outcome.NOT_CONVERGED: _look("bso-outcome-not_converged", _PURPLE, Shape.CROSS),
    Outcome.INFEASIBLE: _look("bso-outcome-infeasible", _ORANGE, Shape.SQUARE),
    Outcome.INTERRUPTED: _look("bso-outcome-interrupted", _SKY, Shape.DIAMOND),
    Outcome.CANCELLED: _look("bso-outcome-cancelled", _GREY, Shape.PLUS),
}
RUNNING = _look("bso-running", _BLUE, Shape.RING)

DEFAULT = _look("bso-default", "#555555", Shape.DASHES)
BEST = _look("bso-best", _GREEN, Shape.BAND)
TARGET = _look("bso-target", "#333333", Shape.DASHES)
BOUND = _look("bso-bound", _VERMILION, Shape.DASHES)

EXPECTED = _look("bso-band", _BLUE, Shape.BOX)
EXPECTED_UNTRIED = _look("bso-band bso-untried", _BLUE, Shape.OPEN_BOX)

MODEL = _look("bso-model", _GREEN, Shape.BLOCK)
ABORTED = _look("bso-aborted", _VERMILION, Shape.BOX)
UNFINISHED = _look("bso-running", _BLUE, Shape.OPEN_BOX)

_RUN_COLOURS = (_BLUE, _VERMILION, _GREEN, _PURPLE, _ORANGE, _SKY, _BLACK, _GREY)
_RUN_SHAPES = (Shape.LINE, Shape.DASHES, Shape.DOTS)

_ALL = (
    *(TEXT, GRID, AXIS, BACKGROUND, *OUTCOMES.values(), RUNNING, DEFAULT, BEST, TARGET, BOUND),
    *(EXPECTED, EXPECTED_UNTRIED, MODEL, ABORTED, UNFINISHED),
)
CLASSES = tuple(
    dict.fromkeys(
        [
            *("bso-picture", "bso-link"),
            *(one for look in _ALL for one in look.css_class.split()),
            *(f"bso-run-{number}" for number in range(len(_RUN_COLOURS))),
        ]
    )
)
"""The class of everything that a picture may hold."""


def run_look(place: int) -> Look:
    """The look of the runs of a batch size, by its place among the batch sizes; it repeats after 24."""
    colour = place % len(_RUN_COLOURS)
    shape = _RUN_SHAPES[place // len(_RUN_COLOURS) % len(_RUN_SHAPES)]
    return _look(f"bso-run-{colour}", _RUN_COLOURS[colour], shape)
