"""docs/migration-from-zeus.md: the old code is Zeus' own, the new code runs."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import gpus
from tests.servers import PATIENCE_S

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/migration-from-zeus.md").read_text(encoding="utf-8")
CELL = re.compile(r"<td>\n(?P<content>.*?)\n</td>", re.DOTALL)
PYTHON = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
REMOVED = ("zeus.run", "zeus.job", "zeus.policy")  # what Zeus' first releases had

# What a reader's script has, as small as it can be: a model that learns nothing but counts its steps.
_SCRIPT = """
import torch
from torch.utils.data import DataLoader

class Model(torch.nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.steps = 0

def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size)

def train_one_step(model, batch):
    model.steps += 1

def train(model, rate):
    model.steps += 1000
    return model

def evaluate(model, loader=None):
    return 0.5 + model.steps / 4

make_model = Model
model, train_set, eval_set = Model(), list(range(256)), list(range(64))
train_loader = make_loader(train_set, 16)
"""
_HUGGING_FACE = """
from transformers import TrainingArguments

from tests.training.integrations.tiny import Accuracies, Classifier, FirstTokens

make_model, compute_metrics = Classifier, Accuracies(0.95)
model, train_set, eval_set = Classifier(), FirstTokens(256), FirstTokens(64)
args = TrainingArguments(num_train_epochs=2, eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True)
"""


def cells(column: int) -> list[Any]:
    """The Python in the left (0) or right (1) column of the tables, by the heading above."""
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        heading = section.partition("\n")[0]
        contents = [cell["content"] for cell in CELL.finditer(section)]
        codes = [code["code"] for content in contents[column::2] for code in PYTHON.finditer(content)]
        found += [pytest.param(code, id=f"{heading}-{number}") for number, code in enumerate(codes, start=1)]
    return found


def imports(code: str) -> list[tuple[str, str]]:
    """Every name that the code imports, with its module."""
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", one.name) for node in found for one in node.names]


@pytest.mark.parametrize("code", cells(0))
def test_the_old_code_is_that_of_zeus(code: str) -> None:
    names = [(module, name) for module, name in imports(code) if module.startswith("zeus")]
    assert names
    for module, name in names:
        if module.startswith(REMOVED):
            assert importlib.util.find_spec(module) is None, f"{module} is there: this page calls it removed"
        else:
            assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


@pytest.mark.parametrize("code", cells(1))
def test_the_new_code_runs(code: str, tmp_path: Path) -> None:
    """In a process of its own, on a machine with two GPUs, with the pieces that a reader's script has."""
    script = tmp_path / "train.py"
    script.write_text((_HUGGING_FACE if "from transformers" in code else _SCRIPT) + code)
    machine = gpus.FakeGpus(tmp_path / "gpus.json")
    for _ in range(2):
        machine.run(machine.add(uuid=f"GPU-{uuid.uuid4()}"), power_w=100.0)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environment |= machine.environment | {"BSO_STATE_DIR": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] += os.pathsep + str(ROOT)
    launcher = [sys.executable]
    if "torch.distributed" in code:
        launcher = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launcher, script],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-12000:]


def test_every_name_of_zeus_in_its_tables_is_one() -> None:
    """JobSpec's fields are all there, and so are the hooks."""
    from zeus.callback import Callback
    from zeus.optimizer.batch_size import JobSpec

    noted = re.findall(r"^\| (`.*?) \|", PAGE.partition("field of JobSpec")[2].partition("\n\n")[0], re.MULTILINE)
    named = {name for row in noted for name in re.findall(r"`(\w+\*?)`", row)}
    fields = set(JobSpec.__fields__)
    assert {name for name in fields if not name.startswith("mab_")} <= named
    assert "mab_*" in named
    from bso_client.integrations import callbacks

    hooks = {name for name in vars(Callback) if name.startswith("on_")}
    assert hooks <= set(vars(callbacks.Callback))


def test_every_name_of_bso_exists() -> None:
    """Exceptions, selections and classes that the tables name are importable."""
    import bso_client

    named = set(re.findall(r"`(\w+)(?:\([^`]*\))?`", " ".join(re.findall(r"^\|[^|]*\|(.*)\|$", PAGE, re.MULTILINE))))
    classes = {name for name in named if re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+|Cost|Refused|Unreachable", name)}
    assert {"TrainFailed", "WrongOrder", "MaxSlowdown", "Unreachable"} <= classes
    assert {name for name in classes if not hasattr(bso_client, name)} == set()
