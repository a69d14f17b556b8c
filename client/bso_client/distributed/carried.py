"""An error of one rank on its way to the others: there it is raised with the same type and the same words."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bso_client.errors import BsoError


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedError:
    """An exception as plain data. One that does not pickle arrives as a BsoError with the same words."""

    kind: type[BaseException]
    words: str
    arguments: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    def rebuilt(self) -> BaseException:
        """The exception; its own __init__ is not run again."""
        error = self.kind.__new__(self.kind, *self.arguments)
        error.args = self.arguments or (self.words,)
        error.__dict__.update(self.attributes)
        return error


def carried(error: BaseException) -> CarriedError:
    """The exception as plain data."""
    attributes = {name: value for name, value in error.__dict__.items() if name != "__notes__"}
    whole = CarriedError(kind=type(error), words=str(error), arguments=error.args, attributes=attributes)
    try:
        pickle.loads(pickle.dumps(whole)).rebuilt()  # noqa: S301  # made in this line
    except Exception:  # noqa: BLE001  # whatever somebody's exception holds
        return CarriedError(kind=BsoError, words=f"{type(error).__name__}: {error}")
    return whole


def raise_first(values: Sequence[object], *, rank: int) -> None:
    """Raise the error of the lowest rank that has one, with a note that says whose it is."""
    for origin, value in enumerate(values):
        if isinstance(value, CarriedError):
            error = value.rebuilt()
            if origin != rank:
                error.add_note(f"raised on rank {origin}")
            raise error
