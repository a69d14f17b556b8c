"""The map of the client in the architecture is the one that import-linter holds, and names every module."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "client" / "bso_client"


def test_the_floors_of_the_client_are_those_of_the_import_rules() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (`[^|]*`) \|", page, re.MULTILINE)
    floors: dict[int, set[str]] = {}
    for floor, modules in rows:
        floors.setdefault(int(floor), set()).update(re.findall(r"`(\w+)`", modules))
    assert list(floors) == sorted(floors, reverse=True), "the highest floor comes first"
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (rule["layers"] for rule in rules if rule.get("containers") == ["bso_client"])
    assert list(floors.values()) == [set(layer.split(" | ")) for layer in layers]


def test_each_module_that_a_row_names_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package, words in re.findall(r"^\| \d \| `(\w+)` \| (.*) \|$", page, re.MULTILINE):
        named = set(re.findall(r"`(\w+)`", words))
        assert not named or named <= {module.stem for module in (CLIENT / package).glob("*.py")}
