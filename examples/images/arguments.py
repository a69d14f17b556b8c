"""What the command line of train.py offers."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke:
    """A training of some seconds, to see that everything works: how many images, of what size, of how many classes."""

    images: int = 800
    image_size: int = 16
    classes: int = 10
    max_epochs: int = 8
    batch_sizes: tuple[int, ...] = (32, 64, 128)


SMOKE = Smoke()


def parsed() -> argparse.Namespace:
    """The arguments, with those that are left out filled in for the chosen data."""
    parser = argparse.ArgumentParser(description="Train an image classifier with the batch size that costs least.")
    _add_data(parser)
    _add_job(parser)
    _add_training(parser)
    arguments = parser.parse_args()
    is_small = arguments.cifar100 is None and arguments.folder is None
    if arguments.smoke or arguments.generated is None:
        arguments.generated = arguments.generated or SMOKE.images
    arguments.arch = arguments.arch or ("resnet8" if is_small else "resnet18")
    arguments.batch_sizes = arguments.batch_sizes or (
        list(SMOKE.batch_sizes) if is_small else [64, 128, 256, 512, 1024]
    )
    arguments.default_batch_size = arguments.default_batch_size or (64 if is_small else 256)
    arguments.max_epochs = arguments.max_epochs or (SMOKE.max_epochs if is_small else 100)
    if arguments.warmup_epochs is None:
        arguments.warmup_epochs = 0 if is_small else 5
    return arguments


def _add_data(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data").add_mutually_exclusive_group(required=True)
    data.add_argument("--cifar100", type=Path, metavar="DIR", help="CIFAR-100, binary version: DIR holds train.bin")
    data.add_argument("--folder", type=Path, metavar="DIR", help="train/CLASS/*.jpeg and val/CLASS/*.jpeg, as ImageNet")
    data.add_argument("--generated", type=int, metavar="N", help="N invented images")
    data.add_argument("--smoke", action="store_true", help=f"{SMOKE.images} invented images: does everything work?")
    parser.add_argument("--image-size", type=int, default=224, help="pixels, for --folder (224)")
    parser.add_argument("--workers", type=int, default=0, help="processes that load images, for each rank (0)")


def _add_job(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("job")
    job.add_argument("--job-id", help="the job's name (data and network)")
    job.add_argument("--batch-sizes", type=int, nargs="+", help="those to choose from, of all ranks together")
    job.add_argument("--default-batch-size", type=int, help="the one to begin with (256)")
    job.add_argument("--target", type=float, help="accuracy that a model must have (CIFAR-100 0.6, a folder 0.65)")
    job.add_argument("--max-epochs", type=int, help="(100)")
    job.add_argument("--eta-knob", type=float, default=0.5, help="1: only energy counts, 0: only time (0.5)")
    job.add_argument("--checkpoint", type=Path, metavar="FILE", help="save after each epoch, and go on from there")
    limits = ["off", "cost", "energy", "time", "slowdown"]
    job.add_argument("--power-limit", choices=limits, default="off", help="find the GPU's best power limit too (off)")
    job.add_argument("--power-limit-step", type=float, default=25, metavar="W", help="from one limit to the next (25)")


def _add_training(parser: argparse.ArgumentParser) -> None:
    training = parser.add_argument_group("training")
    training.add_argument("--arch", help="resnet8, 18, 20 or 50, shufflenet, or torchvision:NAME (resnet18)")
    training.add_argument("--learning-rate", type=float, default=0.1, help="at the reference batch size (0.1)")
    training.add_argument("--reference-batch-size", type=int, default=256, help="(256)")
    rules = ["linear", "square_root", "none"]
    training.add_argument("--learning-rate-rule", choices=rules, default="linear", help="how it follows (linear)")
    training.add_argument("--warmup-epochs", type=int, help="over which the learning rate rises (5)")
    training.add_argument("--weight-decay", type=float, default=5e-4, help="(0.0005)")
    training.add_argument(
        "--max-micro-batch-size", type=int, metavar="N", help="accumulate gradients over batches of N"
    )
    training.add_argument(
        "--amp", choices=["none", "bfloat16", "float16"], default="none", help="mixed precision (none)"
    )
    training.add_argument("--seed", type=int, default=os.environ.get("BSO_SEED", "0"), help="(BSO_SEED, else 0)")
    training.add_argument("--device", help="(cuda if it is there)")
