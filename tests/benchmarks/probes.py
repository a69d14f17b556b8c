"""How far probed epoch costs are from real ones, on trainings with PyTorch on the CPU.

    python -m tests.benchmarks.probes [--rounds 3]

Needs torch and scikit-learn. Five models on as many data sets are trained with one batch size and probed for the
others; then an epoch with each of these is trained, evaluation included. What is compared is the time of an epoch over
that with the training's own batch size. Rounds take turns, and the medians of their errors are printed.
"""

# pyright: reportMissingImports=false

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bso_client.energy.monitor import ConstantPowerMonitor
from bso_client.integrations.probe_step import ProbeStep
from bso_client.prober import Prober
from bso_client.training.state import Consumption
from tests.benchmarks.decisions.markdown import markdown

ROOT = Path(__file__).parents[2]
BATCH_SIZES = (16, 32, 64, 128, 256)
OWN = 64
EPOCHS = 2
"""Of each batch size, of which the faster one counts: the first also makes what later ones find made."""
LENGTH, CHARACTERS = 32, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and its data; ``make`` gives a new model."""

    name: str
    make: Callable[[], nn.Module]
    data: TensorDataset


class Recurrent(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Predicts the next character of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 32)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.gru(self.embedding(text))[0][:, -1])


class Attentive(nn.Module):  # type: ignore[misc]  # torch is Any here
    """The same with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, CHARACTERS)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(text)).mean(dim=1))


def cases() -> Iterator[Case]:
    """Five models on as many data sets."""
    digits: Any = load_digits()
    yield Case(
        name="convolutional, digits",
        make=lambda: nn.Sequential(
            *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
        ),
        data=dataset(digits.data / 16.0, digits.target),
    )
    cancer: Any = load_breast_cancer()
    yield Case(
        name="perceptron, breast cancer",
        make=lambda: nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2)),
        data=dataset(cancer.data, cancer.target),
    )
    points, classes = make_classification(6000, 100, n_informative=30, n_classes=5, random_state=1)
    yield Case(
        name="wide perceptron, made points",
        make=lambda: nn.Sequential(nn.Linear(100, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5)),
        data=dataset(points, classes),
    )
    yield Case(name="recurrent, text", make=Recurrent, data=_text(ROOT / "docs" / "guarantees.md"))
    yield Case(name="attention, text", make=Attentive, data=_text(ROOT / "docs" / "researcher.md"))


def dataset(inputs: Any, labels: Any) -> TensorDataset:
    return TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64))


def _text(path: Path) -> TensorDataset:
    codes = torch.tensor([ord(each) - 32 for each in path.read_text() if 32 <= ord(each) < 32 + CHARACTERS])
    windows = codes.unfold(0, LENGTH + 1, 6)[:3000]
    return TensorDataset(windows[:, :-1].contiguous(), windows[:, -1].contiguous())


def loss_of(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """As in the trainings."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def epoch_s(model: nn.Module, data: TensorDataset, batch_size: int) -> float:
    """How long an epoch takes [s], with an evaluation of a tenth of the data."""
    loader = DataLoader(data, batch_size=batch_size, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    held_out = data[: len(data) // 10]
    times_s = []
    for _ in range(EPOCHS):
        began_s = time.perf_counter()
        model.train()
        for batch in loader:
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(held_out[0])
        times_s.append(time.perf_counter() - began_s)
    return min(times_s)


def errors_of(case: Case) -> dict[int, float]:
    """Ln of the probed over the real time of an epoch, by batch size."""
    model = case.make()
    own_s = epoch_s(model, case.data, OWN)
    step = ProbeStep(model, lambda batch: loss_of(model, batch), DataLoader(case.data, batch_size=OWN, shuffle=True))
    others = [size for size in BATCH_SIZES if size != OWN]
    epoch = Consumption(time_s=own_s, energy_j=own_s)
    found = Prober(ConstantPowerMonitor()).probe(step, others, own=OWN, epoch=epoch, allowance_s=60.0)
    probed = {each.batch_size: each.time_s for each in found.probes}
    return {size: math.log(probed[size] / epoch_s(case.make(), case.data, size)) for size in others if size in probed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.probes", description="How far probed epoch costs are from real ones."
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (3)")
    rounds = parser.parse_args(arguments).rounds
    torch.manual_seed(1)
    torch.set_num_threads(1)
    every = list(cases())
    found: dict[str, list[dict[int, float]]] = {case.name: [] for case in every}
    for number in range(rounds):
        for case in every:
            found[case.name].append(errors_of(case))
            sys.stderr.write(f"round {number + 1} of {rounds}: {case.name}\n")
    others = [size for size in BATCH_SIZES if size != OWN]
    rows = []
    for name, errors in found.items():
        medians = [statistics.median(one[size] for one in errors if size in one) for size in others]
        mean = statistics.fmean(abs(each) for each in medians)
        rows.append([name, *(f"{100 * math.expm1(each):+.0f} %" for each in medians), f"{100 * mean:.0f} %"])
    header = ["error of the probed time of an epoch", *map(str, others), "mean"]
    sys.stdout.write(f"{markdown(header, rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
