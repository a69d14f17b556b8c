"""How many files somebody reads who follows one report of an embedded training to its decision and back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import PATIENCE_S

PROGRAM = [sys.executable, "-m", "tests.integration.client.reporting_training"]


@pytest.mark.parametrize(("policy", "most"), [("pruning_thompson", 35), ("curve", 41)])
def test_a_report_enters_few_files(tmp_path: Path, policy: str, most: int) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_STATE_DIR": str(tmp_path), "BSO_ENERGY": "assumed"}
    done = subprocess.run(
        [*PROGRAM, policy], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    files = done.stdout.split()
    assert "client/bso_client/driver.py" in files
    assert f"bso/policies/{policy}/policy.py" in files
    assert "bso/storage/sqlite.py" in files
    assert len(files) <= most, "\n".join(["a report runs code of", *files])
