"""Runs the scripts of a page as a reader would, around a model and data of their own."""

import os
import subprocess
import sys
from pathlib import Path

from tests.servers import PATIENCE_S

# What a reader brings along: a model that reads handwritten digits, its data, and its evaluation.
READER = """
import torch, sys
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
images, digits = load_digits(return_X_y=True)
images, digits = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
train_set, test_set = TensorDataset(images[:1400], digits[:1400]), TensorDataset(images[1400:], digits[1400:])
make_model = lambda: torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
make_loader = lambda batch_size: DataLoader(train_set, batch_size=batch_size, shuffle=True)

def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()

def evaluate(model):
    return (model(images[1400:]).argmax(1) == digits[1400:]).float().mean()
"""


def run(folder: Path, *parts: str, launcher: tuple[str, ...] = (), machine: dict[str, str] | None = None) -> str:
    """Run the parts as one script, with a state directory of its own; returns what it printed."""
    script = folder / "train.py"
    script.write_text("\n".join([READER, *parts]))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_STATE_DIR": str(folder / "state"), "BSO_ENERGY": "assumed", "OMP_NUM_THREADS": "1"}
    environ |= {"HF_HUB_OFFLINE": "1"} | (machine or {"CUDA_VISIBLE_DEVICES": ""})
    command = [sys.executable, *launcher, str(script)]
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def torchrun() -> tuple[str, ...]:
    """Launches a script on two ranks."""
    return ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
