"""What pydantic found wrong with a value, in the words of people who wrote a setting, a file or a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a text",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "model_type": "an object",
    "dataclass_type": "an object",
    "none_required": "nothing",
}
"""By pydantic's types of errors (https://docs.pydantic.dev/latest/errors/validation_errors/)."""
_OTHER = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "unexpected_keyword_argument": "is not known",
    "too_long": "may have at most {max_length} items",
    "too_short": "needs at least {min_length} items",
    "string_too_long": "may have at most {max_length} characters",
    "string_too_short": "needs at least {min_length} characters",
}
_LONGEST = 60  # characters of what came


def explained(fault: Mapping[str, Any]) -> str:
    """What was expected and what came, where the error (one of ``ValidationError.errors()``) has its input."""
    kind = fault["type"]
    limits = {name: f"{one:g}" if isinstance(one, float) else one for name, one in fault.get("ctx", {}).items()}
    if kind in _OTHER:
        return _OTHER[kind].format(**limits)
    came = f", got {_shown(fault['input'])}" if "input" in fault else ""
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind].format(**limits)}{came}"
    words: str = fault["msg"]
    return words.removeprefix("Value error, ")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
