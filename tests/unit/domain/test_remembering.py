"""Remembered results are those of the function, worked out once while their values live."""

from dataclasses import dataclass
from typing import Any

import pytest

from bso.domain.frozen_values import MOST, remembered


@dataclass(frozen=True)
class Value:
    """Equal to others that hold the same."""

    numbers: dict[str, int]


class Adding:
    """A function that lists what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Any]] = []

    def __call__(self, one: Value, other: Value) -> int | None:
        """The sum, None for nothing."""
        self.asked.append((one, other))
        return sum(one.numbers.values()) + sum(other.numbers.values()) or None

    __name__ = "adding"


def test_what_was_just_asked_is_not_worked_out_again() -> None:
    adding = Adding()
    add = remembered(adding)
    one, other, nothing = Value({"a": 1}), Value({"b": 2}), Value({})
    assert [add(one, other), add(one, other), add(other, one), add(nothing, nothing), add(nothing, nothing)] == [
        3,
        3,
        3,
        None,
        None,
    ]
    assert adding.asked == [(one, other), (other, one), (nothing, nothing)]


def test_values_are_not_confused_although_their_memory_is_used_again() -> None:
    add = remembered(Adding())
    for number in range(3 * MOST):
        assert add(Value({"a": number}), Value({"b": 1})) == number + 1


def test_only_the_latest_results_are_kept() -> None:
    adding = Adding()
    add = remembered(adding)
    values = [Value({"a": number}) for number in range(MOST + 1)]
    for value in values:
        add(value, value)
    add(values[-1], values[-1])
    assert len(adding.asked) == MOST + 1
    add(values[0], values[0])
    assert len(adding.asked) == MOST + 2


def test_what_is_given_by_name_is_remembered_too() -> None:
    adding = Adding()
    add = remembered(adding)
    one, other = Value({"a": 1}), Value({"b": 2})
    for _ in range(2):
        assert [add(one, other), add(one, other=other), add(one, other=one)] == [3, 3, 2]
    assert adding.asked == [(one, other), (one, other), (one, one)]


def test_what_is_raised_is_raised_again() -> None:
    add = remembered(Adding())
    for _ in range(2):
        with pytest.raises(AttributeError):
            add(None, None)  # type: ignore[arg-type]
