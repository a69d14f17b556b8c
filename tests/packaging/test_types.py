"""The types of the public names, as the checkers of somebody else's project see them."""

import json
import os
import re
from pathlib import Path

from tests.packaging.conftest import BIN, Environment, ok, run

SCRIPT = """
from typing import assert_type

from bso_client import BatchSizeOptimizer, EnergyMonitor, JobSpec, LearningRate, Outcome, Trial

spec = JobSpec(job_id="typed", batch_sizes=[16, 32], default_batch_size=32, target_metric=0.9)
optimizer = BatchSizeOptimizer(spec, learning_rate=LearningRate(0.1, reference_batch_size=32))
for trial in optimizer.trials():
    assert_type(trial, Trial)
    assert_type(trial.batch_size, int)
    assert_type(trial.finished, bool)
    assert_type(trial.outcome, Outcome | None)
    with trial:
        trial.on_evaluate(0.5)
with EnergyMonitor() as monitor:
    monitor.begin_window("epoch")
    assert_type(monitor.end_window("epoch").total_energy, float)
"""
MISTAKES = """
from bso_client import JobSpec

JobSpec(job_id=1, batch_sizes=[16, 32], default_batch_size=32)
JobSpec(job_id="typed", batch_sizes="all", default_batch_size=32)
JobSpec(job_id="typed", batch_size=[16, 32], default_batch_size=32)
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_mypy_sees_the_types_and_the_mistakes(bare: Environment, tmp_path: Path) -> None:
    mypy = (
        BIN / "mypy",
        "--strict",
        "--python-executable",
        bare.path / "bin/python",
        "--cache-dir",
        tmp_path / "cache",
    )
    ok(*mypy, write(tmp_path / "script.py", SCRIPT), cwd=tmp_path)
    found = run(*mypy, write(tmp_path / "mistakes.py", MISTAKES), cwd=tmp_path)
    assert {int(line) for line in re.findall(r"mistakes\.py:(\d+): error", found.stdout)} == {4, 5, 6}


def test_pyright_sees_the_types_and_the_mistakes(bare: Environment, tmp_path: Path) -> None:
    pyright = (BIN / "pyright", "--pythonpath", bare.path / "bin/python")
    ok(*pyright, write(tmp_path / "script.py", SCRIPT), cwd=tmp_path)
    found = run(*pyright, write(tmp_path / "mistakes.py", MISTAKES), cwd=tmp_path)
    assert {int(line) for line in re.findall(r"mistakes\.py:(\d+):\d+ - error", found.stdout)} == {4, 5, 6}


def test_every_public_name_and_all_that_belongs_to_it_has_a_type(bare: Environment, tmp_path: Path) -> None:
    names = "{f'{o.__module__}.{o.__qualname__}' for n in c.__all__ if hasattr(o := getattr(c, n), '__qualname__')}"
    program = f"import bso_client as c; print(*{names})"
    public = bare.ok("python", "-c", program).split()
    path = f"{bare.path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = run(BIN / "pyright", "--verifytypes", "bso_client", "--outputjson", cwd=tmp_path, PATH=path)
    symbols = {each["name"]: each for each in json.loads(done.stdout)["typeCompleteness"]["symbols"]}
    assert len(public) > 30
    assert set(public) <= set(symbols)
    members = [each for name, each in symbols.items() if any(f"{name}.".startswith(f"{one}.") for one in public)]
    assert [each["name"] for each in members if not each["isTypeKnown"]] == []
