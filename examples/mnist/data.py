"""Handwritten digits: MNIST where torchvision can read or download it, else the small set that scikit-learn holds."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import TensorDataset

MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Grey images, of shape [images, 1, height, width] and about normal, and what they show.

    ``target`` is an accuracy that a small network reaches after some epochs.
    """

    name: str
    target: float
    training: TensorDataset
    validation: TensorDataset


def load(dataset: str, folder: Path) -> Digits:
    """The data that ``dataset`` names: mnist, digits, or auto for the first of them that is at hand.

    In data parallel training the first rank of each machine may download them, while the others wait.
    """
    if not distributed.is_initialized():
        return _load(dataset, folder, may_download=True)
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    digits = _load(dataset, folder, may_download=True) if is_first else None
    distributed.barrier()
    digits = digits or _load(dataset, folder, may_download=False)
    names: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(names, digits.name)
    if len(set(names)) > 1:
        sys.exit(f"not every rank has the same data ({', '.join(names)}): give --data a folder that all machines have")
    return digits


def _load(dataset: str, folder: Path, *, may_download: bool) -> Digits:
    if dataset == "digits":
        return _scikit_learn()
    try:
        return _mnist(folder, may_download=may_download)
    except (ImportError, OSError, RuntimeError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        if dataset == "mnist":
            sys.exit(f"MNIST cannot be had: {why} (install torchvision, and give --data a folder that holds MNIST/raw)")
        print(f"MNIST cannot be had ({why}): training on scikit-learn's digits instead", file=sys.stderr)
        return _scikit_learn()


def _mnist(folder: Path, *, may_download: bool) -> Digits:
    datasets: Any = importlib.import_module("torchvision.datasets")  # RuntimeError: built for another torch

    def part(*, train: bool) -> TensorDataset:
        images = datasets.MNIST(folder, train=train, download=may_download)
        scaled = (images.data.unsqueeze(1) / 255.0 - MNIST_MEAN) / MNIST_DEVIATION
        return TensorDataset(scaled, images.targets)

    return Digits(name="mnist", target=0.985, training=part(train=True), validation=part(train=False))


def _scikit_learn() -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("neither MNIST nor scikit-learn's digits are at hand: pip install scikit-learn, or torchvision")
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[order] / 8.0 - 1.0
    labels = torch.tensor(digits.target)[order]
    return Digits(
        name="digits",
        target=0.95,
        training=TensorDataset(images[:1400], labels[:1400]),
        validation=TensorDataset(images[1400:], labels[1400:]),
    )
