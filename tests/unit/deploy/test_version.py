"""Every file that names the release names the one of pyproject.toml."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

# The image's tag in any file, Docker's argument, kustomize's tag, and the Job whose name carries the release.
NAMED = re.compile(
    r"\bbso-(?:optimizer|training):(\d[\w.]*)|^ARG VERSION=(\S+)|newTag: (\S+)|\bbso-migrate-(\d+-\d+-\d+)",
    re.MULTILINE,
)


def versions() -> list[tuple[str, str]]:
    listed = subprocess.run(
        ["git", "ls-files", "README.md", "docs", "deploy", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file() and not name.endswith(".png")]
    return [
        (name, next(filter(None, groups)).replace("-", "."))
        for name in files
        for groups in NAMED.findall((ROOT / name).read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize("place", ["deploy/Dockerfile", "deploy/compose.yaml", "deploy/kubernetes/migrate.yaml"])
def test_the_places_are_found(place: str) -> None:
    assert place in {name for name, _ in versions()}


def test_all_name_the_release_of_the_project() -> None:
    assert {(name, version) for name, version in versions() if version != VERSION} == set()


def test_the_changelog_has_a_section_for_it() -> None:
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
