"""Copies with some fields changed are those of dataclasses.replace, and so are the errors."""

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import KW_ONLY, FrozenInstanceError, InitVar, dataclass, field
from typing import Any, ClassVar

import pytest

from bso.domain import commands, events, job, job_spec, knowledge, replies, trial
from bso.domain.frozen_values import replace
from bso.domain.job import Job
from bso.domain.learning_rate import LearningRate
from bso.policies.curve import epoch_records

MODULES = (commands, events, job, job_spec, knowledge, replies, trial, epoch_records)


@dataclass(frozen=True, slots=True)
class _WithPositions:
    kind: ClassVar[str] = "positions"
    first: int
    second: list[int] = field(default_factory=list)
    _: KW_ONLY
    third: str | None = None


@dataclass(frozen=True, slots=True)
class _Doubled:
    given: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.given)


@dataclass(frozen=True, slots=True)
class _Scaled:
    factor: InitVar[int]
    value: int = 0


@dataclass(frozen=True, slots=True)
class _Unset:
    value: int
    later: int = field(default=7, init=False)


@dataclass(frozen=True, slots=True, init=False)
class _Own:
    value: int

    def __init__(self, value: int) -> None:
        object.__setattr__(self, "value", abs(value))


class _Inheriting(_WithPositions):
    def __init__(self, first: int, second: list[int], third: str | None) -> None:
        super().__init__(abs(first), second, third=third)


@dataclass(frozen=True)
class _WithoutSlots:
    value: int


@dataclass(frozen=True, slots=True)
class _Derived(_WithPositions):
    fourth: int = 4


@dataclass(slots=True)
class _Changeable:
    value: int


def _classes() -> Iterator[type]:
    for module in MODULES:
        for _, cls in inspect.getmembers(module, dataclasses.is_dataclass):
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                yield cls


def _instance(cls: Any) -> Any:
    return cls(**{one.name: f"value of {one.name}" for one in dataclasses.fields(cls)})


@pytest.mark.parametrize("cls", tuple(_classes()), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_any_field_of_any_value_of_the_domain_can_be_changed(cls: type) -> None:
    before = _instance(cls)
    for one in dataclasses.fields(cls):
        after = replace(before, **{one.name: "changed"})
        assert type(after) is cls
        assert after == dataclasses.replace(before, **{one.name: "changed"})
        assert before == _instance(cls)
    assert replace(before) == before


def test_a_copy_is_another_object_that_is_frozen_like_any() -> None:
    before = Job(job_id="a")
    copy = replace(before)
    assert copy is not before
    with pytest.raises(FrozenInstanceError):
        copy.job_id = "b"  # type: ignore[misc]


def test_what_is_not_changed_is_the_same_object() -> None:
    before = Job(job_id="a")
    assert replace(before, last_seq=3).versions is before.versions


def test_positions_defaults_and_variables_of_the_class_make_no_difference() -> None:
    assert replace(_WithPositions(1, [2], third="3"), first=4) == _WithPositions(4, [2], third="3")
    assert replace(LearningRate(0.1, reference_batch_size=32), value=0.2) == LearningRate(0.2, reference_batch_size=32)


@pytest.mark.parametrize(
    ("instance", "changes"),
    [
        (_Doubled(3), {"given": 5}),
        (_Own(-3), {"value": -5}),
        (_Inheriting(-3, [], None), {"first": -5}),
        (_WithoutSlots(3), {"value": 5}),
        (_Derived(3, fourth=5), {"first": 6}),
        (_Changeable(3), {"value": 5}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_more_than_its_fields_is_made_as_usual(instance: Any, changes: dict[str, Any]) -> None:
    after = replace(instance, **changes)
    assert after == dataclasses.replace(instance, **changes)
    assert type(after) is type(instance)


def test_a_dataclass_made_by_its_post_init_is_made_by_it_again() -> None:
    assert replace(_Doubled(3), given=5).twice == 10


@pytest.mark.parametrize(
    ("instance", "changes"),
    [
        (Job(job_id="a"), {"nothing": 1}),
        (Job(job_id="a"), {"last_seq": 1, "nothing": 1}),
        (_WithPositions(1), {"kind": "x"}),
        (_Doubled(3), {"twice": 5}),
        (_Unset(3), {"later": 5}),
        (_Scaled(2), {"value": 5}),
        (Job, {"job_id": "b"}),
        ("no dataclass", {}),
    ],
    ids=repr,
)
def test_what_cannot_be_changed_raises_the_usual_error(instance: Any, changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as usual:
        dataclasses.replace(instance, **changes)
    with pytest.raises(usual.type) as raised:
        replace(instance, **changes)
    assert str(raised.value) == str(usual.value)
