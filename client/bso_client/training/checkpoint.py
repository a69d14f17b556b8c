"""The state of a training as plain data, for torch.save, pickle or JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from bso.schema.errors import MalformedMessage
from bso_client.errors import CannotResume
from bso_client.training.state import TrainingState

_FORMAT = 1


def checkpoint_of(state: TrainingState) -> dict[str, Any]:
    """The state as plain data."""
    return {"format": _FORMAT, **_plain(state)}


def read_checkpoint(data: Mapping[str, Any]) -> TrainingState:
    """What checkpoint_of gave. Raises CannotResume if it is something else."""
    try:
        fields_ = dict(data)
        if (format_ := fields_.pop("format")) != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {format_!r}")
        return _state_from(fields_)
    except (KeyError, TypeError, ValueError, MalformedMessage) as error:
        raise CannotResume(
            f"this is not what state_dict() gave ({error!r}): hand back the mapping that it returned, or train anew"
        ) from error


def _state_from(found: dict[str, Any]) -> TrainingState:
    from bso.schema.envelope import validated  # pydantic takes its time, and few trainings are resumed

    state: TrainingState = validated(TrainingState, found, "checkpoint")
    return state


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value
