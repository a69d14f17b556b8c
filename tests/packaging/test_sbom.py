"""The bill of materials that is written beside the wheel, as for a release."""

import json
import shutil
import tomllib
import zipfile
from email.parser import Parser
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import ROOT, VERSION
from tools.write_sbom import main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHIPPED = ("server", "web", "mysql", "postgres")
"""The extras that the image installs."""


@pytest.fixture(scope="module")
def released(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release: the wheel, the sdist, and the bill of materials."""
    folder = tmp_path_factory.mktemp("released")
    shutil.copytree(built, folder, dirs_exist_ok=True)
    main(folder)
    return folder


@pytest.fixture(scope="module")
def text(released: Path) -> str:
    return (released / f"bso_optimizer-{VERSION}.cdx.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def bill(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_it_is_valid_by_the_schema_of_cyclonedx(text: str, bill: dict[str, Any]) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(json.dumps({**bill, "components": "none"})) is not None


def test_it_describes_the_wheel_and_the_sdist_of_the_release(bill: dict[str, Any], wheel: Path, sdist: Path) -> None:
    described = bill["metadata"]["component"]
    with zipfile.ZipFile(wheel) as held:
        [name] = [name for name in held.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(held.read(name).decode())
    assert (described["name"], described["version"]) == (metadata["Name"], metadata["Version"])
    assert described["purl"] == f"pkg:pypi/{metadata['Name']}@{metadata['Version']}"
    assert described["licenses"] == [{"license": {"id": metadata["License-Expression"]}}]
    assert described["hashes"] == hashes(wheel)
    files = {one["url"]: one["hashes"] for one in described["externalReferences"] if one["type"] == "distribution"}
    assert files == {wheel.name: hashes(wheel), sdist.name: hashes(sdist)}


def hashes(path: Path) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256(path.read_bytes()).hexdigest()}]


def test_everything_that_the_wheel_requires_is_there_in_a_release_that_it_allows(
    bill: dict[str, Any], wheel: Path
) -> None:
    components = {one["name"]: one for one in bill["components"]}
    with zipfile.ZipFile(wheel) as held:
        [name] = [name for name in held.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(held.read(name).decode())
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    always = [one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    of_extras = [one for one in required if any(one.marker and one.marker.evaluate({"extra": e}) for e in SHIPPED)]
    assert always
    assert of_extras
    for requirement in [*always, *of_extras]:
        component = components[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(component["version"])
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}"
        assert component["scope"] == ("required" if requirement in always else "optional")
    direct = {str(canonicalize_name(one.name)) for one in [*always, *of_extras]}
    assert set(depends_on(bill, "bso-optimizer")) == direct


def depends_on(bill: dict[str, Any], name: str) -> list[str]:
    [found] = [one.get("dependsOn", []) for one in bill["dependencies"] if one["ref"] == name]
    return list(found)


def test_everything_in_it_is_needed_by_something(bill: dict[str, Any]) -> None:
    reached, new = set[str](), {"bso-optimizer"}
    while new:
        reached |= new
        new = {name for one in new for name in depends_on(bill, one)} - reached
    assert reached == {"bso-optimizer", *(one["bom-ref"] for one in bill["components"])}
    assert "pamqp" in depends_on(bill, "aiormq")


def test_the_wheel_itself_carries_none(wheel: Path) -> None:
    """It bundles nothing: what is installed beside it, and in which release, is its user's decision."""
    with zipfile.ZipFile(wheel) as held:
        assert not [name for name in held.namelist() if "/sboms/" in name]
