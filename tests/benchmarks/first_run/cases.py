"""Six models on four data sets, each with a target that it reaches within some epochs."""

# pyright: reportMissingImports=false

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from tests.benchmarks import probes

SYMBOLS, TEXTS, LENGTH, AUTHORS = 24, 3000, 12, 8
MOMENTUM = functools.partial(torch.optim.SGD, momentum=0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its data, and the validation loss [nats] that is its target; ``make`` gives a new model."""

    name: str
    make: Callable[[], nn.Module]
    data: TensorDataset
    batch_sizes: tuple[int, ...]
    optimizer: Callable[..., torch.optim.Optimizer]
    rate: float
    """Where the search for a learning rate begins, at the middle batch size."""
    target: float
    max_epochs: int

    @property
    def middle(self) -> int:
        """The default batch size, as bso's users choose it."""
        return self.batch_sizes[len(self.batch_sizes) // 2]


def cases() -> Iterator[Case]:
    """Six models on four data sets."""
    probed = {case.name: case for case in probes.cases()}
    digits: Any = load_digits()
    images = probes.dataset(digits.data / 16.0, digits.target)
    usual = (16, 32, 64, 128, 256)

    def case(name: str, make: Callable[[], nn.Module], data: TensorDataset, **others: Any) -> Case:
        return Case(**{"name": name, "make": make, "data": data, "batch_sizes": usual, "max_epochs": 20, **others})

    softmax = functools.partial(nn.Linear, 64, 10)
    yield case("softmax regression, digits", softmax, images, optimizer=torch.optim.SGD, rate=1.6, target=0.2)
    convolutional = probed["convolutional, digits"]
    yield case("convolutional, digits", convolutional.make, images, optimizer=MOMENTUM, rate=0.04, target=0.12)
    cancer = probed["perceptron, breast cancer"]
    small = (8, 16, 32, 64, 128)
    yield case(
        "perceptron, breast cancer",
        cancer.make,
        cancer.data,
        batch_sizes=small,
        optimizer=torch.optim.Adam,
        rate=0.004,
        target=0.1,
    )
    wide = probed["wide perceptron, made points"]
    yield case("wide perceptron, made points", wide.make, wide.data, optimizer=MOMENTUM, rate=0.02, target=0.42)
    yield case(
        "recurrent, made text",
        probes.Recurrent,
        next_symbols(),
        optimizer=torch.optim.Adam,
        rate=0.01,
        target=1.95,
    )
    yield case("attention, made text", probes.Attentive, authors(), optimizer=torch.optim.Adam, rate=0.004, target=0.25)


def next_symbols() -> TensorDataset:
    """Texts of a source whose next symbol depends on the last two, and that symbol."""
    random = torch.Generator().manual_seed(1)
    chances = torch.softmax(
        2.5 * torch.randn(SYMBOLS, SYMBOLS, generator=random).repeat(SYMBOLS, 1)
        + 1.5 * torch.randn(SYMBOLS**2, SYMBOLS, generator=random),
        dim=1,
    )
    texts = torch.randint(SYMBOLS, (TEXTS, 2), generator=random)
    for _ in range(LENGTH - 1):
        pair = texts[:, -2] * SYMBOLS + texts[:, -1]
        texts = torch.cat([texts, torch.multinomial(chances[pair], 1, generator=random)], dim=1)
    return TensorDataset(texts[:, :-1].contiguous(), texts[:, -1].contiguous())


def authors() -> TensorDataset:
    """Texts of authors who prefer other symbols, and who wrote each."""
    random = torch.Generator().manual_seed(2)
    chances = torch.softmax(torch.randn(AUTHORS, probes.CHARACTERS, generator=random), dim=1)
    labels = torch.randint(AUTHORS, (TEXTS // 2,), generator=random)
    return TensorDataset(torch.multinomial(chances[labels], 2 * LENGTH, replacement=True, generator=random), labels)
