"""docs/pytorch.md: its script with data loaders runs as it stands, on one rank and on two."""

import re
from pathlib import Path

from tests.training.pages.reader import run, torchrun

PAGE = Path(__file__).parents[3] / "docs/pytorch.md"

JOINED = """
import os
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
"""
READER = """
eval_set = test_set
model_of_one_process = make_model

def make_model():
    model = model_of_one_process()
    return torch.nn.parallel.DistributedDataParallel(model) if "RANK" in os.environ else model

def train_step(model, images, labels):
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad

def count_right(model, images, labels):
    return int((model(images).argmax(1) == labels).sum())
"""
NOTED = "print('trained', trial.outcome.value, trial.metric > 0.8)"


def script() -> str:
    """The page's script with data loaders, without processes that load."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    [found] = [body for body in blocks if "EvaluationLoader" in body and "trials()" in body]
    return str(found).replace("0.97", "0.8").replace("num_workers=4", "num_workers=0")


def test_the_data_loaders_train_in_one_process(tmp_path: Path) -> None:
    assert "trained converged True" in run(tmp_path, JOINED, READER, script(), NOTED)


def test_two_ranks_report_the_accuracy_and_not_their_share_of_it(tmp_path: Path) -> None:
    printed = run(tmp_path, JOINED, READER, script(), NOTED, launcher=torchrun())

    assert printed.count("converged True") == 2  # both ranks write to one place
