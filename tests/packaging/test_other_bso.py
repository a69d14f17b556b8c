"""Another distribution with the import name bso in the same environment: recognised, and explained, either way."""

from pathlib import Path

import pytest

from tests.packaging.conftest import OTHER, OURS, VERSION, Environment
from tests.packaging.test_installing import TRAINING

PROGRAMS = {
    "the client": ("python", "-c", "import bso_client"),
    "the workers": ("python", "-c", "import bso_workers"),
    "the worker's module": ("python", "-m", "bso_workers"),
    "the command": ("bso", "jobs", "list"),
    "the command's module": ("python", "-m", "bso_cli", "doctor"),
}


@pytest.fixture(scope="module")
def other_is_last(bare: Environment, folder: Path) -> Environment:
    """Ours first, then the other one, which overwrites our bso/__init__.py."""
    environment = bare.copy(folder / "other-last")
    environment.install("--no-deps", "--force-reinstall", OURS)
    environment.install("--no-deps", OTHER)
    return environment


@pytest.fixture(scope="module")
def own_is_last(bare: Environment, folder: Path) -> Environment:
    """The other one first, then ours, which overwrites its bso/__init__.py."""
    environment = bare.copy(folder / "own-last")
    environment.pip("uninstall", "--yes", "--quiet", "bso-optimizer")
    environment.install("--no-deps", OTHER)
    environment.install(OURS)
    return environment


@pytest.mark.parametrize("program", PROGRAMS)
def test_where_the_other_was_installed_last_nothing_of_it_is_run_and_the_remedy_is_named(
    other_is_last: Environment, program: str
) -> None:
    done = other_is_last.run(*PROGRAMS[program])
    assert done.returncode == 1
    assert "the package bso of another distribution (bso 9999.0)" in done.stderr
    assert str(other_is_last.packages / "bso/__init__.py") in done.stderr
    assert "pip uninstall bso\n" in done.stderr
    assert f"pip install --force-reinstall --no-deps bso-optimizer=={VERSION}\n" in done.stderr
    if program.startswith("the command"):
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("program", ["the client", "the workers", "the command"])
def test_where_ours_was_installed_last_it_works_and_warns(own_is_last: Environment, program: str) -> None:
    done = own_is_last.run(*PROGRAMS[program])
    assert done.returncode == 0
    assert done.stderr.count("another distribution (bso 9999.0) installed a package called bso") == 1
    assert "pip uninstall bso\n" in done.stderr
    assert own_is_last.ok("python", "-c", TRAINING) == "True\n"


def test_where_the_other_one_was_uninstalled_ours_says_that_it_is_incomplete(
    other_is_last: Environment, tmp_path: Path
) -> None:
    environment = other_is_last.copy(tmp_path / "torn")
    environment.pip("uninstall", "--yes", "--quiet", "bso")
    assert not (environment.packages / "bso/__init__.py").exists()
    done = environment.run("python", "-c", "import bso_client")
    assert done.returncode == 1
    assert "bso/__init__.py is missing" in done.stderr


@pytest.mark.parametrize("which", ["other_is_last", "own_is_last"])
def test_the_remedy_works(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    environment: Environment = request.getfixturevalue(which).copy(tmp_path / "mended")
    said = environment.run("python", "-c", "import bso_client").stderr
    uninstall, install = (line.split(" -m pip ")[1].split() for line in said.splitlines() if " -m pip " in line)
    environment.pip(*uninstall, "--yes")
    environment.install(*install[1:])
    assert environment.ok("python", "-W", "error", "-c", TRAINING) == "True\n"
    assert environment.run("bso", "jobs", "list").stderr == ""
