"""The words in which a wrong value is reported."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from bso.schema.wrong_values import explained


class _Settings(BaseModel, extra="forbid"):
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    seconds: Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)] = 1.0
    style: Literal["console", "json"] = "json"
    log: bool = True
    names: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = ("a",)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("port", "tcp://10.0.0.1:80", "expected a whole number, got 'tcp://10.0.0.1:80'"),
        ("port", 1.5, "expected a whole number, got 1.5"),
        ("port", -1, "expected 0 or more, got -1"),
        ("port", 65536, "expected 65535 or less, got 65536"),
        ("port", "9" * 5000, f"expected a whole number of fewer digits, got '{'9' * 56}..."),
        ("seconds", "soon", "expected a number, got 'soon'"),
        ("seconds", 0, "expected a number above 0, got 0"),
        ("seconds", 1e9, "expected a number below 1e+09, got 1000000000.0"),
        ("seconds", float("nan"), "expected a finite number, got nan"),
        ("style", "xml", "expected 'console' or 'json', got 'xml'"),
        ("log", "perhaps", "expected true or false, got 'perhaps'"),
        ("names", 7, "expected a list, got 7"),
        ("names", ["a", 7], "expected a text, got 7"),
        ("names", [], "needs at least 1 items"),
        ("names", list("abc"), "may have at most 2 items"),
        ("name", "x", "is not known"),
    ],
)
def test_what_was_expected_and_what_came(name: str, value: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        _Settings.model_validate({name: value})
    [fault] = caught.value.errors()
    assert explained(fault) == words


def test_what_came_is_left_out_where_it_must_not_be_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        _Settings.model_validate({"port": "secret"})
    [fault] = caught.value.errors(include_input=False)
    assert explained(fault) == "expected a whole number"
