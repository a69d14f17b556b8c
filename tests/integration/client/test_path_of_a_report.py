"""How many files somebody reads who follows one report of an embedded training to its decision and back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import PATIENCE_S

PROGRAM = [sys.executable, "-m", "tests.integration.client.reporting_training"]


@pytest.mark.parametrize(
    ("policy", "trainings", "most"),
    [
        pytest.param("curve", 1, 35, id="curve, the first training of a job"),
        pytest.param("curve", 8, 39, id="curve"),
        pytest.param("pruning_thompson", 8, 35, id="pruning_thompson"),
    ],
)
def test_a_report_enters_few_files(tmp_path: Path, policy: str, trainings: int, most: int) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_STATE_DIR": str(tmp_path), "BSO_ENERGY": "assumed"}
    done = subprocess.run(
        [*PROGRAM, policy, str(trainings)], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert "client/bso_client/driver.py" in files
    assert f"bso/policies/{policy}/policy.py" in files
    assert "bso/storage/sqlite.py" in files
    assert len(files) <= most, "\n".join(["a report runs code of", *files])
