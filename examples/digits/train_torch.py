"""Train a small convolutional network with PyTorch, from a checkpoint if an earlier run was ended before its time.

    python examples/digits/train_torch.py [checkpoint.pt]

The loaders' worker processes hold no connection to the optimizer. With a checkpoint file the state of the trial is
saved beside the model: a run that was preempted (SIGTERM) is resumed by the next one with the same batch size. Needs
torch and scikit-learn, for the data; runs on a GPU if there is one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bso_client import BatchSizeOptimizer, CannotResume, JobSpec, Trial

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset, random_split
except ImportError as missing:
    sys.exit(f"this example needs torch and scikit-learn ({missing}): pip install torch scikit-learn")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def make_model() -> nn.Module:
    """A network for images of 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    ).to(DEVICE)


def load_data() -> tuple[Any, Any]:
    """Images and labels for training and for validation, always split the same way."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    everything = TensorDataset(images, torch.tensor(digits.target))
    return tuple(random_split(everything, [1400, len(everything) - 1400], torch.Generator().manual_seed(0)))


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    """Go over the training data once."""
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE)).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, loader: Any) -> float:
    """The share of images that are read right."""
    model.eval()
    right = [(model(images.to(DEVICE)).argmax(1) == labels.to(DEVICE)).float() for images, labels in loader]
    return float(torch.cat(right).mean())


def train(bso: BatchSizeOptimizer, trial: Trial, checkpoint: Path | None, saved: dict[str, Any] | None) -> None:
    """One training with one batch size."""
    training, validation = load_data()
    loader = DataLoader(training, batch_size=trial.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    with trial:
        while not trial.finished:
            train_epoch(model, optimizer, loader)
            trial.on_evaluate(accuracy(model, DataLoader(validation, batch_size=512)))
            if checkpoint is not None and not trial.finished:
                with bso.paused():  # saving is no part of the training's cost
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "bso": bso.state_dict()}
                    torch.save(state, checkpoint)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)


def main() -> None:
    """Train until there is a model that reads 97 % of the digits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", nargs="?", type=Path, help="where the training is saved after each epoch")
    checkpoint: Path | None = parser.parse_args().checkpoint
    bso = BatchSizeOptimizer(
        JobSpec(
            job_id="digits-torch",
            batch_sizes=[16, 32, 64, 128],
            default_batch_size=64,
            target_metric=0.97,
            max_epochs=30,
        )
    )
    saved = None
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        bso.load_state_dict(saved["bso"])
    try:
        for trial in bso.trials():
            train(bso, trial, checkpoint, saved)
            saved = None
            print(f"trial {trial.trial_number}: batch size {trial.batch_size}: {trial.outcome_reason}")
    except CannotResume as error:
        sys.exit(f"{error} ({checkpoint} is of no use any more: delete it)")


if __name__ == "__main__":
    main()
