"""What the distribution says of itself, and what it holds."""

import re
import subprocess
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.conftest import BIN, ROOT, ok

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.fixture(scope="module")
def held(wheel: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def metadata(held: zipfile.ZipFile) -> Message:
    (name,) = [name for name in held.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(held.read(name).decode())


def test_an_index_accepts_it(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    assert ok(BIN / "twine", "--no-color", "check", "--strict", sdist, wheel, cwd=tmp_path).count("PASSED") == 2


def test_it_names_licence_authors_and_addresses(metadata: Message, held: zipfile.ZipFile) -> None:
    assert metadata["Name"] == "bso-optimizer"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"]
    assert {url.split(",")[0] for url in metadata.get_all("Project-URL", [])} >= {"Homepage", "Documentation", "Source"}
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    (licence,) = [name for name in held.namelist() if name.endswith("/licenses/LICENSE")]
    assert held.read(licence).decode().split()[:2] == ["Apache", "License"]


def test_the_links_of_its_readme_lead_somewhere_on_an_index(metadata: Message) -> None:
    readme = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)\s]+)", readme)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    files = [link.partition(f"/blob/v{metadata['Version']}/")[2].partition("#")[0] for link in links]
    assert [name for name in files if name and not (ROOT / name).exists()] == []


def test_its_extras_are_those_for_users(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == {"server", "web", "http", "mysql", "postgres", "demo", "gpu"}


def test_the_wheel_holds_every_file_of_every_package_and_nothing_else(held: zipfile.ZipFile) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *SOURCES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = {
        str(Path(source).name / Path(line).relative_to(source))
        for line in listed.stdout.splitlines()
        for source in SOURCES
        if Path(line).is_relative_to(source) and (ROOT / line).exists() and Path(line).name != "ruff.toml"
    }
    assert {name for name in held.namelist() if ".dist-info/" not in name} == expected


@pytest.mark.parametrize("source", SOURCES)
def test_each_package_says_that_it_has_types(held: zipfile.ZipFile, source: str) -> None:
    assert f"{Path(source).name}/py.typed" in held.namelist()


def test_the_sdist_holds_what_its_readers_need(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "docs/releasing.md", "Makefile"}
    assert names >= {"SECURITY.md", "docs/security.md"}
    assert not [name for name in names if name.startswith((".venv", ".cache", "build/", "dist/", "deploy/secrets"))]
