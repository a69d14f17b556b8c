"""Frozen values, fast: copies with some fields changed, and results that are worked out once.

Every event copies the job and what it changes in it, and most of the time that a decision takes went into that:
dataclasses.replace calls ``__init__`` with all fields by name, and that of a frozen class sets each of them by a slow
way round its own ``__setattr__``. Here they are set in an object of an open class with the same slots, which becomes a
frozen value when all are set; by code that names them, compiled once for each class as dataclasses does with its own
methods, since ``setattr`` with a name takes several times as long. What is more than the sum of its slots is left to
dataclasses.replace: a class with a ``__post_init__``, with a base class, without slots, or whose ``__init__`` takes
something else than its fields. So is a name that is no field: the error is the usual one.

What pure functions make of such values is remembered where it is asked for again and again.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

MOST = 1024
"""Results that are kept; the oldest goes first."""

_Values = ParamSpec("_Values")
_Result = TypeVar("_Result")
_Parts = tuple[object, ...]


def remembered(function: Callable[_Values, _Result]) -> Callable[_Values, _Result]:
    """The same pure function of frozen values, which works the latest results out only once.

    It goes by which objects are asked about, not by what they hold: values that hold mappings have no hash.
    """
    all_of: Callable[..., _Parts] = _all_of
    return remembered_by(all_of)(function)


def remembered_by(
    parts: Callable[_Values, _Parts], *, most: int = MOST
) -> Callable[[Callable[_Values, _Result]], Callable[_Values, _Result]]:
    """The same for a function whose result depends only on these parts of what it is asked about."""

    def of(function: Callable[_Values, _Result]) -> Callable[_Values, _Result]:
        results: OrderedDict[tuple[int, ...], tuple[_Parts, _Result]] = OrderedDict()

        @wraps(function)
        def remembering(*values: _Values.args, **named: _Values.kwargs) -> _Result:
            asked = parts(*values, **named)
            key = tuple(map(id, asked))
            kept = results.get(key)
            if kept is None:
                kept = asked, function(*values, **named)  # while kept, nothing else can have the ids of its parts
                results[key] = kept
                while len(results) > most:
                    results.popitem(last=False)
            return kept[1]

        return remembering

    return of


def _all_of(*values: object, **named: object) -> _Parts:
    return (*values, *named, *named.values())


__all__ = ["remembered", "remembered_by", "replace"]

_Value = TypeVar("_Value")
_TakeAll = Callable[[Any, Any], None]


def _replaced(instance: _Value, /, **changes: object) -> _Value:
    cls: type = type(instance)
    opened = _opened(cls)
    if opened is None or not changes.keys() <= opened[0].__slots__.keys():
        return dataclasses.replace(instance, **changes)  # type: ignore[type-var]  # it says what is wrong
    open_class, take_all = opened
    copy = open_class()
    take_all(copy, instance)
    for name, value in changes.items():
        setattr(copy, name, value)
    copy.__class__ = cls
    made: _Value = copy
    return made


@cache  # one for each class
def _opened(cls: type) -> tuple[Any, _TakeAll] | None:
    """A class with the same slots, as a dict, whose attributes may be set, and what sets them all to those of a value.

    None where slots are not all there is.
    """
    made_by, slots = vars(cls).get("__dataclass_params__"), vars(cls).get("__slots__")
    if made_by is None or not (made_by.frozen and made_by.init) or hasattr(cls, "__post_init__"):
        return None
    names = tuple(field.name for field in dataclasses.fields(cls))
    if cls.__bases__ != (object,) or slots != names or tuple(inspect.signature(cls).parameters) != names:
        return None
    return type(f"Open{cls.__name__}", (), {"__slots__": dict.fromkeys(names)}), _taking_all(names)


def _taking_all(names: Sequence[str]) -> _TakeAll:
    lines = [f"copy.{name} = value.{name}" for name in names] or ["pass"]
    made: dict[str, Any] = {}
    source = "def take_all(copy, value):\n " + "\n ".join(lines)
    # Compiled first: exec of a text makes CPython forget that a KeyboardInterrupt was not caught, and an interrupted
    # process that copies its first value of a class when it exits would end with 1 in the place of the signal.
    exec(compile(source, __name__, "exec"), made)  # noqa: S102  # names of fields, and nothing else
    take_all: _TakeAll = made["take_all"]
    return take_all


if TYPE_CHECKING:
    from dataclasses import replace  # type checkers know it, and check the names and types of what is changed
else:
    replace = _replaced
