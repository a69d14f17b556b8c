"""Train a digit classifier with the loaders of Zeus' contract: they measure, report and stop by themselves.

    python train_loader.py
    torchrun --nproc-per-node 2 train_loader.py

The training loader takes the place of the DataLoader, `epochs()` that of the loop over epochs, and `report_metric()`
says how good the model is; nothing else changes, on one process or several. Needs torch, and torchvision or
scikit-learn.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from bso_client import BatchSizeOptimizer, JobSpec, LearningRate, PowerLimitOptimizer, Trial

try:
    import torch
    from data import Digits, load
    from network import Network
    from torch import distributed, nn

    from bso_client.integrations.torch import EvaluationLoader, TrainingLoader
except ImportError as missing:
    sys.exit(f"this example needs torch ({missing}): pip install torch")


def train(trial: Trial, digits: Digits, power_limit: PowerLimitOptimizer | None) -> None:
    """One training with one batch size, or with this rank's share of it."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    training = TrainingLoader(digits.training, trial, shuffle=True, power_limit=power_limit)
    validation = EvaluationLoader(digits.validation, training, batch_size=512)
    model: nn.Module = Network().to(device)
    if distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.learning_rate, momentum=0.9)
    for _ in training.epochs():
        model.train()
        for images, labels in training:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
            optimizer.step()
        model.eval()
        right, seen = 0, 0
        with torch.no_grad():
            for images, labels in validation:
                right += int((model(images.to(device)).argmax(1) == labels.to(device)).sum())
                seen += len(labels)
        training.report_metric(right / seen)  # of this rank's part: the mean of all ranks counts


def main() -> None:
    """Train until there is a model."""
    logging.basicConfig(format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["auto", "mnist", "digits"], default="auto", help="(MNIST if it is there)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where MNIST is, or is downloaded to (data)")
    parser.add_argument("--max-epochs", type=int, default=40, help="(40)")
    parser.add_argument("--power-limit", action="store_true", help="find the GPU's best power limit too")
    parser.add_argument(
        "--seed",
        type=int,
        default=os.environ.get("BSO_SEED", "0"),
        help="for the weights; the same on every rank (BSO_SEED, else 0)",
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    if "RANK" in os.environ:  # under torchrun
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        distributed.init_process_group()
    digits = load(arguments.dataset, arguments.data)
    spec = JobSpec(
        job_id=f"example-{digits.name}-loader",
        batch_sizes=[32, 64, 128, 256, 512],
        default_batch_size=128,
        target_metric=digits.target,
        max_epochs=arguments.max_epochs,
    )
    rate = LearningRate(0.05, reference_batch_size=128, rule="linear")
    with (
        BatchSizeOptimizer(spec, learning_rate=rate) as bso,
        PowerLimitOptimizer(bso) if arguments.power_limit else nullcontext() as power_limit,
    ):
        for trial in bso.trials():
            with trial:
                train(trial, digits, power_limit)
            if os.environ.get("RANK", "0") == "0":
                print(f"trial {trial.trial_number}: batch size {trial.batch_size}: {trial.outcome_reason}")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
