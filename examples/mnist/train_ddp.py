"""Train a digit classifier data parallel, on several GPUs or CPU processes, of one machine or several.

    torchrun --nproc-per-node 2 train_ddp.py
    bso recur 20 -- torchrun --nproc-per-node 2 train_ddp.py

Every rank runs the same loop as on a single GPU: it gets the same batch size, its own share of it
(``local_batch_size``), and the same end; energy is summed over all GPUs. Needs torch, and torchvision or scikit-learn.
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
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, Subset
except ImportError as missing:
    sys.exit(f"this example needs torch ({missing}): pip install torch")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["auto", "mnist", "digits"], default="auto", help="(MNIST if it is there)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where MNIST is, or is downloaded to (data)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 128, 256, 512], help="of all ranks together")
    parser.add_argument("--default-batch-size", type=int, default=128, help="the one to begin with (128)")
    parser.add_argument("--target", type=float, help="accuracy that a model must have (0.985, digits: 0.95)")
    parser.add_argument("--max-epochs", type=int, default=40, help="(40)")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="at batch size 128 (0.05)")
    parser.add_argument(
        "--seed",
        type=int,
        default=os.environ.get("BSO_SEED", "0"),
        help="for weights and order; the same on every rank (BSO_SEED, else 0)",
    )
    return parser.parse_args()


def begin_group() -> torch.device:
    """Join the process group that torchrun has prepared; returns this rank's device."""
    if "RANK" not in os.environ:
        sys.exit("this example is started by torchrun: torchrun --nproc-per-node 2 train_ddp.py")
    if not torch.cuda.is_available():
        distributed.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device)
    return device


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, device: torch.device) -> None:
    """Go over this rank's share of the training images once."""
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, loader: Any, device: torch.device) -> float:
    """The share of all ranks' images that are read right."""
    model.eval()
    counts = torch.zeros(2, device=device)
    for images, labels in loader:
        right = model(images.to(device)).argmax(1) == labels.to(device)
        counts += torch.tensor([right.sum(), right.numel()], device=device)
    distributed.all_reduce(counts)
    return float(counts[0] / counts[1])


def train(trial: Trial, digits: Digits, arguments: argparse.Namespace, device: torch.device) -> None:
    """One training with one batch size, of which this rank has its share."""
    sampler: Any = DistributedSampler(digits.training, seed=arguments.seed)
    training = DataLoader(digits.training, trial.local_batch_size, sampler=sampler)
    own = range(distributed.get_rank(), len(digits.validation), distributed.get_world_size())
    validation = DataLoader(Subset(digits.validation, own), batch_size=512)
    model = DistributedDataParallel(Network().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.learning_rate, momentum=0.9)
    with trial:
        while not trial.finished:
            sampler.set_epoch(int(trial.epoch))
            train_epoch(model, optimizer, training, device)
            trial.on_evaluate(accuracy(model.module, validation, device))  # on every rank


def main() -> None:
    """Train until there is a model."""
    logging.basicConfig(format="%(message)s")
    arguments = parsed()
    device = begin_group()
    torch.manual_seed(arguments.seed)
    digits = load(arguments.dataset, arguments.data)
    spec = JobSpec(
        job_id=f"example-{digits.name}-parallel",
        batch_sizes=arguments.batch_sizes,
        default_batch_size=arguments.default_batch_size,
        target_metric=arguments.target or digits.target,
        max_epochs=arguments.max_epochs,
    )
    learning_rate = LearningRate(arguments.learning_rate, reference_batch_size=128, rule="linear")
    with BatchSizeOptimizer(spec, learning_rate=learning_rate) as bso:
        for trial in bso.trials():
            train(trial, digits, arguments, device)
            if distributed.get_rank() == 0:
                print(
                    f"trial {trial.trial_number}: batch size {trial.batch_size}, {trial.local_batch_size} on each of "
                    f"{distributed.get_world_size()} ranks, {trial.epoch:g} epochs: {trial.outcome_reason}"
                )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
