"""Installed by its name, alone or with one extra, it does what the hints promise."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, VERSION, Environment

TRAINING = """
from bso_client import BatchSizeOptimizer, JobSpec

spec = JobSpec(job_id="bare", batch_sizes=[16, 32], default_batch_size=32, target_metric=0.9)
for trial in BatchSizeOptimizer(spec).trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.95)
print(trial.converged)
"""
IMPORTS = "import bso, bso_broker, bso_cli, bso_client, bso_gateway, bso_migrations, bso_optimizer, bso_workers"


def test_every_package_can_be_imported(bare: Environment) -> None:
    bare.ok("python", "-c", IMPORTS)
    assert "bso-optimizer 0." in bare.ok("bso", "doctor")
    assert bare.ok("bso", "--version") == bare.ok("python", "-m", "bso_cli", "--version")


def test_neither_tests_nor_tools_come_with_it(bare: Environment) -> None:
    for name in ("tests", "tools", "deploy", "docs"):
        assert bare.run("python", "-c", f"import {name}").returncode == 1


def test_a_training_runs_without_any_extra(bare: Environment) -> None:
    assert bare.ok("python", "-c", TRAINING, PYTHONWARNINGS="error") == "True\n"
    assert "bare" in bare.ok("bso", "jobs", "list")


# Commands that name an extra where it is missing, and what they do or say where it is there.
USES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "server": (("bso", "worker"), 2, "BSO_DATABASE_URL: not set"),
    "mysql": (("bso", "migrate", "--wait", "0", "--database-url", "mysql://any@127.0.0.1:1/any"), 1, "127.0.0.1"),
    "postgres": (
        ("bso", "migrate", "--wait", "0", "--database-url", "postgresql://any@127.0.0.1:1/any"),
        1,
        "127.0.0.1",
    ),
    "web": (("bso", "serve", "--host", "0.0.0.0"), 2, "without tokens every client"),
    "http": (("bso", "jobs", "list", "--url", "http://127.0.0.1:1/"), 1, "cannot be reached"),
    "demo": (("bso", "demo", "--recurrences", "1"), 0, "recurrence 1 of 1"),
    "gpu": (("bso", "monitor", "--count", "1"), 1, "no energy meter is readable here"),
}


@pytest.mark.parametrize("extra", USES)
def test_each_extra_alone_brings_what_was_missing(bare: Environment, tmp_path: Path, extra: str) -> None:
    hint = "'bso-optimizer["
    command, code, words = USES[extra]
    missing = bare.run(*command)
    assert missing.returncode != 0
    assert hint in missing.stdout + missing.stderr

    environment = bare.copy(tmp_path / extra)
    environment.install(f"bso-optimizer[{extra}]=={VERSION}")
    environment.pip("check")
    found = environment.run(*command)
    said = found.stdout + found.stderr
    assert (found.returncode, hint in said, "Traceback" in said) == (code, False, False), said
    assert words in said


def test_every_hint_names_an_extra_that_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    hints = re.compile(r"(?:bso-optimizer|'\.|\"/build)\[([\w,]+)\]")
    places = [
        path
        for folder in ("bso", "broker", "client", "workers", "migrations", "docs", "examples", "deploy", "README.md")
        for path in ((ROOT / folder).rglob("*") if (ROOT / folder).is_dir() else [ROOT / folder])
        if path.suffix in (".py", ".md", ".yaml", "") and path.is_file()
    ]
    found = {extra for path in places for match in hints.findall(path.read_text("utf-8")) for extra in match.split(",")}
    assert not [path for path in places if re.search(r"\bbso\[|pip install '?bso\b(?!-)", path.read_text("utf-8"))]
    assert {"mysql", "demo", "gpu"} <= found
    assert found <= {*project["optional-dependencies"], "EXTRA"}
