"""Train a digit classifier on one GPU, or on the CPU; each run of this script is one recurrence of the job.

    python train.py
    bso recur 20 -- python train.py --data ~/data

Trains on MNIST where torchvision is installed and can read or download it, else on scikit-learn's digits, and says so.
Needs torch, and torchvision or scikit-learn.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from bso_client import BatchSizeOptimizer, JobSpec, LearningRate, Trial

try:
    import torch
    from data import Digits, load
    from network import Network
    from torch import nn
    from torch.utils.data import DataLoader

    from bso_client.integrations.probe_step import ProbeStep
except ImportError as missing:
    sys.exit(f"this example needs torch ({missing}): pip install torch")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["auto", "mnist", "digits"], default="auto", help="(MNIST if it is there)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where MNIST is, or is downloaded to (data)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512], help="(16 to 512)")
    parser.add_argument("--default-batch-size", type=int, default=128, help="the one to begin with (128)")
    parser.add_argument("--target", type=float, help="accuracy that a model must have (0.985, digits: 0.95)")
    parser.add_argument("--max-epochs", type=int, default=40, help="(40)")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="at batch size 128 (0.05)")
    parser.add_argument("--eta-knob", type=float, default=0.5, help="1: only energy counts, 0: only time (0.5)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data (0)")
    parser.add_argument("--seed", type=int, default=os.environ.get("BSO_SEED"), help="for weights and order (BSO_SEED)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(cuda if it is there)"
    )
    return parser.parse_args()


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, device: torch.device) -> None:
    """Go over the training images once."""
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, loader: Any, device: torch.device) -> float:
    """The share of images that are read right."""
    model.eval()
    right = [model(images.to(device)).argmax(1) == labels.to(device) for images, labels in loader]
    return float(torch.cat(right).float().mean())


def train(trial: Trial, digits: Digits, arguments: argparse.Namespace) -> None:
    """One training with one batch size."""
    device = torch.device(arguments.device)
    training = DataLoader(digits.training, trial.batch_size, shuffle=True, num_workers=arguments.workers)
    validation = DataLoader(digits.validation, batch_size=512)
    model = Network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.learning_rate, momentum=0.9)

    def loss_of(batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0].to(device)), batch[1].to(device))

    step = ProbeStep(model, loss_of, training)
    with trial:
        while not trial.finished:
            train_epoch(model, optimizer, training, device)
            trial.on_evaluate(accuracy(model, validation, device))
            trial.probe_epoch_costs(step)  # what epochs with other batch sizes would cost


def main() -> None:
    """Train until there is a model."""
    logging.basicConfig(format="%(message)s")
    arguments = parsed()
    if arguments.seed is not None:
        torch.manual_seed(arguments.seed)
    digits = load(arguments.dataset, arguments.data)
    spec = JobSpec(
        job_id=f"example-{digits.name}",
        batch_sizes=arguments.batch_sizes,
        default_batch_size=arguments.default_batch_size,
        target_metric=arguments.target or digits.target,
        max_epochs=arguments.max_epochs,
        eta_knob=arguments.eta_knob,
    )
    learning_rate = LearningRate(arguments.learning_rate, reference_batch_size=128, rule="linear")
    with BatchSizeOptimizer(spec, learning_rate=learning_rate) as bso:
        for trial in bso.trials():
            train(trial, digits, arguments)
            print(
                f"trial {trial.trial_number}: batch size {trial.batch_size}, epoch {trial.epoch:g}, "
                f"cost {trial.cost:.3g} J: {trial.outcome_reason}"
            )


if __name__ == "__main__":
    main()
