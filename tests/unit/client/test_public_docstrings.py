"""What the docstring of every public class names: its units, and what it raises."""

import inspect
import re

import pytest

import bso_client

CLASSES = sorted(name for name in bso_client.__all__ if inspect.isclass(getattr(bso_client, name)))
UNIT = re.compile(
    r"\[(s|J|W|MiB|samples|J/sample|samples/s)\]|\b(seconds|joules|samples|epochs|times|units)\b|from 0 \("
)


def named_by(kind: type) -> str:
    """Its docstring, and those of its public members."""
    members = [member for name, member in vars(kind).items() if not name.startswith("_")]
    return "\n".join(inspect.getdoc(one) or "" for one in (kind, *members))


@pytest.mark.parametrize("name", CLASSES)
def test_it_has_a_docstring_of_its_own(name: str) -> None:
    assert (vars(getattr(bso_client, name)).get("__doc__") or "").strip()


@pytest.mark.parametrize("name", CLASSES)
def test_classes_with_quantities_name_their_units(name: str) -> None:
    kind = getattr(bso_client, name)
    if issubclass(kind, BaseException) or not re.search(r":.*\bfloat\b", inspect.getsource(kind)):
        return
    assert UNIT.search(named_by(kind)), f"{name} has floats, and no unit stands in its docstrings"


@pytest.mark.parametrize("name", CLASSES)
def test_what_raises_says_so(name: str) -> None:
    kind = getattr(bso_client, name)
    raised = re.findall(r"\braise (?!NotImplementedError|AssertionError)[A-Z]\w+\(", inspect.getsource(kind))
    if issubclass(kind, BaseException) or not raised:
        return
    assert re.search(r"\braises?\b|errors are the same|its units and errors", named_by(kind), re.IGNORECASE)
