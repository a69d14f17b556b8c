"""Results that are asked for again and again while what they follow from is the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

MOST = 64
"""Results that are kept; the oldest goes first."""

_Values = ParamSpec("_Values")
_Result = TypeVar("_Result")


def remembered(function: Callable[_Values, _Result]) -> Callable[_Values, _Result]:
    """The same pure function of frozen values, which works the latest results out only once.

    It goes by which objects are asked about, not by what they hold: values that hold mappings have no hash.
    """
    results: OrderedDict[tuple[object, ...], tuple[object, _Result]] = OrderedDict()

    @wraps(function)
    def remembering(*values: _Values.args, **named: _Values.kwargs) -> _Result:
        key = (*map(id, values), *named, *map(id, named.values()))
        kept = results.get(key)
        if kept is None:
            kept = ((values, named), function(*values, **named))  # while kept, nothing else can have their ids
            results[key] = kept
            while len(results) > MOST:
                results.popitem(last=False)
        return kept[1]

    return remembering
