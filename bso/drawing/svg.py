"""A picture as text: its elements, escaped, and the marks in it."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType

from bso.domain.foreign_text import shown
from bso.drawing.looks import BACKGROUND, TEXT, Look, Shape

Markup = NewType("Markup", str)
"""Text that is XML already: `element` alone makes it."""

Point = tuple[float, float]

_FONT_SIZE, _LETTER = 12.0, 6.8  # how high and, more or less, how wide a letter is
_LEAST_WIDTH, _LEAST_HEIGHT = 480, 240
_POLYGONS = {
    Shape.TRIANGLE: ((0.0, -1.1), (1.1, 0.85), (-1.1, 0.85)),
    Shape.SQUARE: ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
    Shape.DIAMOND: ((0.0, -1.2), (1.0, 0.0), (0.0, 1.2), (-1.0, 0.0)),
    **dict.fromkeys(
        (Shape.BLOCK, Shape.BAND, Shape.BOX, Shape.OPEN_BOX), ((-1.6, -1.0), (1.6, -1.0), (1.6, 1.0), (-1.6, 1.0))
    ),
}
_STROKES = {
    Shape.CROSS: (((-0.85, -0.85), (0.85, 0.85)), ((-0.85, 0.85), (0.85, -0.85))),
    Shape.PLUS: (((-1.1, 0.0), (1.1, 0.0)), ((0.0, -1.1), (0.0, 1.1))),
}
_LINES = {Shape.LINE: None, Shape.DASHES: "7 4", Shape.DOTS: "2 3"}
_OPACITIES = {Shape.BAND: 0.18, Shape.BOX: 0.25, Shape.OPEN_BOX: 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The width and the height of a picture, in units of its own; it is drawn no smaller than 480 by 240."""

    width: int = 720
    height: int = 300

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", max(self.width, _LEAST_WIDTH))
        object.__setattr__(self, "height", max(self.height, _LEAST_HEIGHT))


def element(tag: str, *children: Markup, words: str = "", **attributes: str | float | None) -> Markup:
    """An element around ``words``, which are escaped, and its children; an attribute that is None is left out.

    ``class_`` and ``stroke_width`` stand for `class` and `stroke-width`. Of a number two decimals are written.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = _escaped(words) + "".join(children)
    return Markup(f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>")


def text(
    words: str, at: Point, *, anchor: str | None = None, weight: str | None = None, room: float = math.inf
) -> Markup:
    """Words at a place, their baseline there; in smaller letters if they are wider than ``room``."""
    wide = width_of(words)
    return element(
        "text",
        words=words,
        x=at[0],
        y=at[1],
        text_anchor=anchor,
        font_weight=weight,
        font_size=_FONT_SIZE * room / wide if wide > room else None,
        fill="currentColor",
        **_coloured(TEXT),
    )


def width_of(words: str) -> float:
    """How wide words are, more or less: which font a reader has is not known."""
    return _LETTER * len(words)


def clipped(words: str, most: int = 160) -> str:
    """Words from outside in one line of at most so many letters."""
    plain = shown(words)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def counted(number: int, noun: str) -> str:
    """``1 trial``, ``1 234 trials``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}".replace(",", " ")


def path(
    look: Look, lines: Iterable[Sequence[Point]], *children: Markup, width: float = 1.0, opacity: float | None = None
) -> Markup:
    """Lines through points, as one element."""
    return element(
        "path",
        *children,
        d=_steps(lines),
        **_coloured(look),
        fill="none",
        stroke="currentColor",
        stroke_width=width,
        stroke_opacity=opacity,
        stroke_dasharray=_LINES.get(look.shape),
        stroke_linejoin="round",
    )


def box(look: Look, left: float, right: float, top: float, bottom: float, *children: Markup) -> Markup:
    """A rectangle."""
    return _area(look, ((left, top), (right, top), (right, bottom), (left, bottom)), *children)


def mark(look: Look, at: Point, *children: Markup, radius: float) -> Markup:
    """One mark around a point; of a line, a short piece."""
    x, y = at
    if look.shape in (Shape.CIRCLE, Shape.RING):
        return _circle(look, at, *children, radius=radius)
    if look.shape in _LINES:
        return path(look, [((x - 9.0, y), (x + 9.0, y))], *children, width=2.0)
    if look.shape in _STROKES:
        lines = [[(x + radius * right, y + radius * down) for right, down in one] for one in _STROKES[look.shape]]
        return path(look, lines, *children, width=radius * 0.45)
    corners = [(x + radius * right, y + radius * down) for right, down in _POLYGONS[look.shape]]
    return _area(look, corners, *children)


def titled(words: str) -> Markup:
    """The words that a browser shows for the element which holds this one."""
    return element("title", words=words)


def linked(drawn: Markup, words: str, href: str | None) -> Markup:
    """A mark that leads to ``href`` and is called ``words``; the mark alone if there is none."""
    return drawn if href is None else element("a", drawn, href=href, class_="bso-link", aria_label=words)


def picture(parts: Iterable[Markup], *, name: str, title: str, description: str, size: Size) -> str:
    """The whole picture. ``name`` makes the ids in it differ from those of other pictures on the page."""
    drawn = list(parts)
    holds_links = any("<a " in part for part in drawn)
    prefix = re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):x}_", name)
    return element(
        "svg",
        element("title", words=title, id=f"{prefix}-title"),
        element("desc", words=description, id=f"{prefix}-desc"),
        element(
            "rect", x=0.0, y=0.0, width=size.width, height=size.height, fill="currentColor", **_coloured(BACKGROUND)
        ),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {size.width} {size.height}",
        width="100%",
        preserveAspectRatio="xMidYMid meet",
        # What is inside an image is out of reach for screen readers, links included.
        role="group" if holds_links else "img",
        aria_labelledby=f"{prefix}-title {prefix}-desc",
        class_="bso-picture",
        font_family="system-ui, sans-serif",
        font_size=_FONT_SIZE,
    )


def sentence(words: str, hint: str, *, name: str, size: Size) -> str:
    """A picture of nothing but what there is not yet, and when there will be."""
    x, y, room = size.width / 2, size.height / 2, size.width - 16.0
    parts = [
        text(words, (x, y - 8.0), anchor="middle", weight="bold", room=room),
        text(hint, (x, y + 14.0), anchor="middle", room=room),
    ]
    return picture(parts, name=name, title=words, description=f"{words}: {hint}.", size=size)


def _circle(look: Look, at: Point, *children: Markup, radius: float) -> Markup:
    is_ring = look.shape is Shape.RING
    return element(
        "circle",
        *children,
        cx=at[0],
        cy=at[1],
        r=radius,
        **_coloured(look),
        fill="currentColor",
        fill_opacity=0.15 if is_ring else None,
        stroke="currentColor" if is_ring else None,
        stroke_width=2.0 if is_ring else None,
    )


def _area(look: Look, corners: Sequence[Point], *children: Markup) -> Markup:
    is_outlined = look.shape in (Shape.BOX, Shape.OPEN_BOX)
    return element(
        "path",
        *children,
        d=f"{_steps([corners])}Z",
        **_coloured(look),
        fill="currentColor",
        fill_opacity=_OPACITIES.get(look.shape),
        stroke="currentColor" if is_outlined else None,
        stroke_dasharray="3 3" if look.shape is Shape.OPEN_BOX else None,
    )


def _coloured(look: Look) -> dict[str, str]:
    return {"class_": look.css_class, "color": look.colour}


def _steps(lines: Iterable[Sequence[Point]]) -> str:
    return "".join("M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points) for points in lines if points)


def _value(value: str | float) -> str:
    return _escaped(value) if isinstance(value, str) else _number(value)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _escaped(words: str) -> str:
    return html.escape(shown(words))
