import os
import subprocess
from pathlib import Path

import pytest

from bso_client.processes import command_for

HELPER = """
import json

def main(arguments):
    print(json.dumps(arguments))
    return 3
"""


def test_a_helper_is_found_on_the_path_of_the_script_after_the_standard_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "helper_of_a_script.py").write_text(HELPER)
    (tmp_path / "json.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    command = command_for("helper_of_a_script", "1", "GPU-a")
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (3, '["1", "GPU-a"]\n'), done.stderr
