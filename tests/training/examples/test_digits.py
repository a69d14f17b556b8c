"""The digits example in PyTorch runs as a reader would run it."""

import sys
from pathlib import Path

from tests.integration.client.test_examples import EXAMPLES, run


def test_the_torch_example_ends_with_a_model(tmp_path: Path) -> None:
    script = EXAMPLES / "digits" / "train_torch.py"
    printed = run(tmp_path, sys.executable, str(script), str(tmp_path / "checkpoint.pt"))

    assert "reached the target" in printed
    assert not (tmp_path / "checkpoint.pt").exists()
