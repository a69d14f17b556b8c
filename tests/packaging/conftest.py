"""The distribution as a stranger gets it: built, uploaded to a private index, installed by its name elsewhere."""

import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.waiting import PATIENCE_S, eventually
from tools.private_servers.ports import ClaimedPorts

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# What this checkout and its environment would add to a program's imports and settings.
OWN = ("PYTHON", "PYTEST_", "BSO_", "VIRTUAL_ENV", "COVERAGE", "COV_")

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
OURS = f"bso-optimizer=={VERSION}"
OTHER = "bso==9999.0"
"""A version that the other project will not publish."""

PROJECT_OF_ANOTHER_BSO = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "bso"
version = "9999.0"
description = "A stand-in for another project's distribution with the import name bso."
"""


def elsewhere(**extra: str) -> dict[str, str]:
    """The environment variables of somebody who has no checkout of this project."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)} | extra


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever the end is."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=elsewhere(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def ok(*command: object, cwd: Path, **environment: str) -> str:
    """Run a program to a good end; what it printed."""
    done = run(*command, cwd=cwd, **environment)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an empty folder beside it in which its programs run."""

    path: Path
    index_url: str

    @property
    def work(self) -> Path:
        folder = self.path.with_name(f"{self.path.name}-work")
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def packages(self) -> Path:
        (folder,) = (self.path / "lib").glob("python3.*/site-packages")
        return folder

    def run(self, program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        state = {"BSO_STATE_DIR": str(self.work / "state"), "BSO_ENERGY": "assumed"}
        return run(self.path / "bin" / program, *arguments, cwd=self.work, **(state | environment))

    def ok(self, program: str, *arguments: object, **environment: str) -> str:
        done = self.run(program, *arguments, **environment)
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def pip(self, *arguments: object) -> str:
        return self.ok("python", "-m", "pip", *arguments, PIP_DISABLE_PIP_VERSION_CHECK="1")

    def install(self, *arguments: object) -> str:
        return self.pip("install", "--quiet", "--no-compile", "--extra-index-url", self.index_url, *arguments)

    def holds(self, wheel: Path) -> bool:
        """Whether the files of a wheel are those that are installed."""
        with zipfile.ZipFile(wheel) as held:
            names = [name for name in held.namelist() if ".dist-info/" not in name]
            return all((self.packages / name).read_bytes() == held.read(name) for name in names)

    def copy(self, path: Path) -> "Environment":
        """The same packages in another environment, whose scripts start its own Python."""
        shutil.copytree(self.path, path, symlinks=True)
        for script in (path / "bin").iterdir():
            if not script.is_symlink() and script.read_bytes().startswith(b"#!"):
                script.write_text(script.read_text("utf-8").replace(str(self.path), str(path)), encoding="utf-8")
        return Environment(path, self.index_url)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packaging")


@pytest.fixture(scope="session")
def built(folder: Path) -> Path:
    """The folder with the sdist, and with the wheel that was built from it, as for a release."""
    out = folder / "dist"
    ok(sys.executable, "-m", "build", "--outdir", out, ROOT, cwd=folder)
    return out


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def sdist(built: Path) -> Path:
    (path,) = built.glob("*.tar.gz")
    return path


@pytest.fixture(scope="session")
def other_wheel(folder: Path) -> Path:
    """Another project's ``bso``: its package has a file of the same name as ours, and one of its own."""
    project = folder / "other"
    (project / "bso").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT_OF_ANOTHER_BSO, encoding="utf-8")
    (project / "bso/__init__.py").write_text('"""Another project."""\nNAME = "other"\n', encoding="utf-8")
    (project / "bso/registry.py").write_text("", encoding="utf-8")
    out = folder / "other-dist"
    ok(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, project, cwd=folder)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def index_url(folder: Path, built: Path, other_wheel: Path) -> Iterator[str]:
    """A private index, to which both distributions were uploaded."""
    packages = folder / "index"
    packages.mkdir()
    with ClaimedPorts(1) as ports:
        (port,) = ports.numbers
        url = f"http://127.0.0.1:{port}"
        options = ["-i", "127.0.0.1", "-p", str(port), "-P", ".", "-a", ".", "--disable-fallback"]
        server = subprocess.Popen(
            [BIN / "pypi-server", "run", *options, packages], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            eventually(lambda: _answers(url), timeout_s=PATIENCE_S, what="the index answers")
            files = [*built.iterdir(), other_wheel]
            ok(BIN / "twine", "upload", "--repository-url", url, "-u", "any", "-p", "any", *files, cwd=folder)
            yield f"{url}/simple/"
        finally:
            server.kill()
            server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def bare(folder: Path, index_url: str, wheel: Path) -> Environment:
    """An environment in which nothing but the distribution was installed, by its name."""
    path = folder / "bare"
    ok(sys.executable, "-m", "venv", path, cwd=folder)
    environment = Environment(path, index_url)
    environment.install(OURS)
    assert environment.holds(wheel)
    return environment
