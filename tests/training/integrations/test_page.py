"""The scripts of docs/integrations.md, run as they stand there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from bso.domain.trial import Outcome
from tests.integration.client.scripts import recorded_trials
from tests.training.integrations.tiny import accuracy, tiny_bert
from tests.training.integrations.tiny_task import FirstTokens

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"


def script(beginning: str) -> str:
    """The Python block of the page that begins so."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (block for block in blocks if block.startswith(beginning))
    return str(found)


@pytest.fixture(autouse=True)
def _in_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BSO_ENERGY", "assumed")


def test_the_script_for_the_trainer_of_transformers(tmp_path: Path) -> None:
    names: dict[str, Any] = {
        "make_model": tiny_bert,
        "train": FirstTokens(64),
        "test": FirstTokens(16, seed=1),
        "compute_metrics": lambda predictions: accuracy(predictions) | {"accuracy": 0.95},
    }
    exec(compile(script("from transformers import Trainer"), PAGE.name, "exec"), names)
    names["bso"].close(timeout=5)

    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert [trial.outcome for trial in recorded_trials(tmp_path, "reviews-weekly")] == [Outcome.CONVERGED]


def test_the_script_for_lightning(tmp_path: Path) -> None:
    images = torch.rand(64, 4)
    digits = torch.utils.data.TensorDataset(images, (images[:, 0] > 2).long())  # all of them are 0
    names: dict[str, Any] = {
        "load_digits": lambda: (digits, digits),
        "make_net": lambda: torch.nn.Linear(4, 2),
    }
    exec(compile(script("import lightning.pytorch"), PAGE.name, "exec"), names)
    names["bso"].close(timeout=5)

    (trial,) = recorded_trials(tmp_path, "digits-nightly")
    assert (trial.batch_size, trial.outcome) == (64, Outcome.CONVERGED)
    assert trial.learning_rate is not None
