"""Values of messages, made from their types alone: a new message, or a new field of one, has them by itself."""

import re
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

PLACE = re.compile(r"§\d+§")


class Samples:
    """Values of messages as JSON, each text in them a place of its own."""

    def __init__(self) -> None:
        self._places = 0

    def _place(self) -> str:
        self._places += 1
        return f"§{self._places}§"

    def of(self, kind: Any) -> Any:
        """A value of a type: of several the first."""
        if is_dataclass(kind):
            return {name: self.of(hint) for name, hint in get_type_hints(kind).items()}
        origin, inner = get_origin(kind), get_args(kind)
        if origin in (Union, types.UnionType):
            return self.of(inner[0])
        if origin is Literal:
            return inner[0]
        if origin is tuple:
            return [self.of(inner[0])]
        if origin is not None and issubclass(origin, Mapping):
            return {"1" if inner[0] is int else self._place(): self.of(inner[1])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return next(iter(kind)).value
        plain: dict[Any, Any] = {bool: False, int: 1, float: 1.0, datetime: "2026-01-01T00:00:00Z"}
        return plain[kind] if kind in plain else self._place()
