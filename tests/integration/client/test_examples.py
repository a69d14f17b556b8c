"""The examples run as a reader would run them."""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.servers import PATIENCE_S

EXAMPLES = Path(__file__).parents[3] / "examples"


def run(folder: Path, *command: str, code: int = 0, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a command over a state directory of its own; returns what it printed.

    It is not measured: that takes twice the time with torch and transformers, and an example is not what is covered.
    One that hangs tells where its threads are.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BSO_", "COVERAGE_"))}
    environ |= {"BSO_STATE_DIR": str(folder / "state"), "BSO_ENERGY": "assumed"}
    environ |= {"COLUMNS": "200", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env={**environ, **environment}, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            printed, complained = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            printed, complained = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, printed + complained
    return printed + complained


@pytest.mark.slow
def test_the_numpy_example_ends_with_a_model_and_learns_from_its_last_run(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the example trains on scikit-learn's digits")
    first = run(tmp_path, sys.executable, str(EXAMPLES / "digits" / "train_numpy.py"))
    second = run(tmp_path, sys.executable, str(EXAMPLES / "digits" / "train_numpy.py"))

    assert "trial 1: batch size 64" in first
    assert "reached the target" in first
    assert "trial 1:" not in second


@pytest.mark.slow
def test_the_flat_example_runs_under_recur(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the example trains on scikit-learn's digits")
    bso = Path(sys.executable).with_name("bso")
    printed = run(
        tmp_path, str(bso), "recur", "2", "--", sys.executable, str(EXAMPLES / "digits" / "train_flat_methods.py")
    )

    assert printed.count("there is a model") == 2


@pytest.mark.slow
def test_the_example_of_learning_rates_shows_that_large_batch_sizes_need_a_rule(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the example trains on scikit-learn's digits")
    printed = run(tmp_path, sys.executable, str(EXAMPLES / "digits" / "learning_rates.py"), "1", "16", "256")
    small, large = (line.split()[1::2] for line in printed.splitlines()[2:4])
    unscaled, _square_root, linear = (int(epochs) for epochs in large)

    assert len(set(small)) == 1, "at the reference all rules are the same"
    assert linear < unscaled / 3


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is there")
def test_the_torch_example_says_what_it_needs(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(EXAMPLES / "digits" / "train_torch.py"), code=1)

    assert "pip install torch scikit-learn" in printed
