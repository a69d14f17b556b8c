"""deploy/Dockerfile makes a small image that runs as an ordinary user, from releases that are pinned."""

import fnmatch
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.pins import FILE, PROJECT, pins, resolved
from deploy.requirements import requirements

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy/Dockerfile"
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PINS = {pin.name: pin for pin in pins(FILE.read_text(encoding="utf-8"))}
EXTRAS = ["server", "web", "mysql", "postgres"]


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest) for word, _, rest in (line.strip().partition(" ") for line in text.splitlines()) if word]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    start = max(index for index, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(ROOT / ".venv/bin")) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint for this platform")
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_pinned_to_a_release() -> None:
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.\d+\.\d+-slim-\w+$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    assert {rest.split()[0] for word, rest in instructions() if word == "FROM"} == {"${PYTHON_IMAGE}"}


def test_it_ends_as_an_ordinary_user() -> None:
    users = [rest for word, rest in last_stage() if word == "USER"]
    assert users == ["10001:10001"]


def test_nothing_is_built_in_the_last_stage() -> None:
    runs = " ".join(rest for word, rest in last_stage() if word == "RUN")
    assert not re.search(r"apt-get|gcc|build-essential|pip wheel", runs)
    assert "--no-index" in runs, "only the wheel from the stage before is installed"


def test_the_image_says_what_it_is() -> None:
    labels = " ".join(rest for word, rest in last_stage() if word == "LABEL")
    assert tomllib.loads(PYPROJECT)["project"]["description"] in labels
    assert {"title", "description", "version", "revision"} <= set(re.findall(r"image\.(\w+)=", labels))


def test_every_extra_that_the_image_installs_exists() -> None:
    (line,) = [rest for word, rest in instructions() if "requirements.py" in rest and word == "RUN"]
    assert f"pyproject.toml {' '.join(EXTRAS)} " in line
    assert requirements(PYPROJECT, EXTRAS)


def test_every_requirement_is_pinned_to_a_release_that_the_project_allows() -> None:
    for text in requirements(PYPROJECT, EXTRAS):
        requirement = Requirement(text)
        pin = PINS[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin.version), (
            f"{requirement} is pinned to {pin.version}: run deploy/pin-constraints"
        )


def test_every_pin_is_needed_by_the_project_or_by_another_pin() -> None:
    direct = {canonicalize_name(Requirement(text).name) for text in requirements(PYPROJECT, EXTRAS)}
    assert {name for name, pin in PINS.items() if PROJECT in pin.needed_by} == direct
    for pin in PINS.values():
        assert pin.needed_by
        assert set(pin.needed_by) <= {PROJECT, *PINS}


def test_a_pin_says_what_needs_it_on_the_image() -> None:
    def found(name: str, *requires: str, requested: bool = False, extras: tuple[str, ...] = ()) -> dict[str, Any]:
        metadata = {"name": name, "version": "1.0", "requires_dist": requires}
        return {"metadata": metadata, "requested": requested, "requested_extras": extras}

    report = {
        "install": [
            found(
                "SQL_Alchemy",
                "greenlet; extra == 'asyncio'",
                "old; python_version < '3.12'",
                requested=True,
                extras=("asyncio",),
            ),
            found("greenlet", "sphinx; extra == 'docs'"),
            found("old", "greenlet", requested=True),
        ]
    }
    assert {pin.name: pin.needed_by for pin in resolved(report)} == {
        "greenlet": ("old", "sql-alchemy"),
        "old": (PROJECT,),
        "sql-alchemy": (PROJECT,),
    }


def test_the_build_sees_the_packages_and_no_secrets() -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    packages = {Path(path).parts[0] for path in wheel_packages()}
    assert patterns[0] == "*"
    assert packages <= {pattern[1:] for pattern in patterns if pattern.startswith("!")}
    for secret in ("deploy/secrets", "deploy/.env"):
        assert any(fnmatch.fnmatch(secret, pattern) for pattern in patterns[patterns.index("!deploy") + 1 :])


def wheel_packages() -> list[str]:
    found: list[str] = tomllib.loads(PYPROJECT)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return found
