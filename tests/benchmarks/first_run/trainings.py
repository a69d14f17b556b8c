"""Trainings to a target, whose epochs are counted in fractions and whose noise scales are measured on the way."""

# pyright: reportMissingImports=false

import copy
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.benchmarks import probes
from tests.benchmarks.first_run.cases import Case
from tests.benchmarks.first_run.noise_scale import SquaredNorms, noise_scale

EVALUATIONS = 8
"""In an epoch, where it has as many steps."""
GRADIENTS = 8
"""Measured at each evaluation, at the same weights; the large batch is all of them together."""
HELD_OUT, MOST_HELD_OUT = 0.25, 300
"""A share of the examples, at most so many."""
TUNED, FIXED = "tuned", "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The epochs of a training until its target, None where it was not reached, and what was measured by epoch."""

    epochs: float | None
    norms: Sequence[tuple[float, SquaredNorms]]

    def early(self) -> float:
        """The noise scale over the first epoch."""
        return noise_scale([one for epoch, one in self.norms if epoch <= 1.0])

    def halfway(self) -> float:
        """The noise scale where half of the epochs were over, from as many gradients as an epoch has."""
        half = (self.epochs or self.norms[-1][0]) / 2
        nearest = sorted(self.norms, key=lambda one: abs(one[0] - half))[:EVALUATIONS]
        return noise_scale([one for _, one in nearest])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Trainings of one model with one rule of learning rates, by batch size."""

    rates: Mapping[int, float]
    runs: Mapping[int, Sequence[Run]]

    def ln_epochs(self) -> dict[int, list[float]]:
        """Of each training that reached its target."""
        return {size: [math.log(run.epochs) for run in runs if run.epochs] for size, runs in self.runs.items()}

    def means(self) -> dict[int, float]:
        """Of ln epochs, of batch sizes with which more than three quarters of the trainings reached the target."""
        every = self.ln_epochs()
        return {
            size: statistics.fmean(every[size])
            for size, runs in self.runs.items()
            if len(every[size]) > 0.75 * len(runs)
        }

    def variances(self) -> dict[int, float]:
        """Of these means."""
        every = self.ln_epochs()
        return {size: statistics.variance(every[size]) / len(every[size]) for size in self.means()}


def batches(count: int, batch_size: int, random: torch.Generator) -> Iterator[Tensor]:
    """Indices of one shuffled epoch after the other; a batch may lie in two of them, so all have the same size."""
    left = torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < batch_size:
            left = torch.cat([left, torch.randperm(count, generator=random)])
        yield left[:batch_size]
        left = left[batch_size:]


def squared_norms(model: nn.Module, data: TensorDataset, batch_size: int, random: torch.Generator) -> SquaredNorms:
    """Of gradients of random batches, drawn with replacement; the model and its training are left as they were."""
    before = copy.deepcopy(model.state_dict())
    gradients = []
    with torch.random.fork_rng():
        for _ in range(GRADIENTS):
            loss = probes.loss_of(model, data[torch.randint(len(data), (batch_size,), generator=random)])
            parts = torch.autograd.grad(loss, list(model.parameters()))
            gradients.append(torch.cat([part.flatten() for part in parts]))
    model.load_state_dict(before)
    return SquaredNorms(
        small_batch=batch_size,
        small=statistics.fmean(float(one @ one) for one in gradients),
        large_batch=GRADIENTS * batch_size,
        large=float(torch.stack(gradients).mean(dim=0).square().sum()),
    )


def train(case: Case, batch_size: int, rate: float, seed: int, *, epochs: float, is_measured: bool = False) -> Run:
    """To the target, or for so many epochs; the epoch of the target lies between two evaluations on a straight line."""
    torch.manual_seed(seed)
    random, other = (torch.Generator().manual_seed(number + seed) for number in (0, 1000))
    order = torch.randperm(len(case.data), generator=torch.Generator().manual_seed(0))
    count = len(order) - min(MOST_HELD_OUT, int(HELD_OUT * len(order)))
    training, held_out = TensorDataset(*case.data[order[:count]]), case.data[order[count:]]
    model = case.make()
    optimizer = case.optimizer(model.parameters(), lr=rate)
    norms: list[tuple[float, SquaredNorms]] = []
    last_epoch, last_loss = 0.0, math.inf
    for step, batch in enumerate(batches(count, batch_size, random), start=1):
        optimizer.zero_grad()
        probes.loss_of(model, training[batch]).backward()
        optimizer.step()
        epoch = step * batch_size / count
        if int(epoch * EVALUATIONS) == int((epoch - batch_size / count) * EVALUATIONS):
            continue
        loss = validation_loss(model, held_out)
        if loss <= case.target:
            share = (last_loss - case.target) / (last_loss - loss) if math.isfinite(last_loss) else 1.0
            return Run(epochs=last_epoch + share * (epoch - last_epoch), norms=norms)
        if epoch >= epochs or not math.isfinite(loss):
            return Run(epochs=None, norms=norms)
        if is_measured:
            norms.append((epoch, squared_norms(model, training, batch_size, other)))
        last_epoch, last_loss = epoch, loss
    raise AssertionError("batches never end")


def validation_loss(model: nn.Module, held_out: Sequence[Tensor]) -> float:
    """Mean cross-entropy [nats]."""
    model.eval()
    with torch.no_grad():
        loss = float(probes.loss_of(model, held_out))
    model.train()
    return loss


def tuned_rate(case: Case, batch_size: int, seeds: Sequence[int]) -> float:
    """The best rate of those an octave apart, searched up and down until one needs more epochs than that before it."""
    start = case.rate * math.sqrt(batch_size / case.middle)

    def all_epochs(rate: float, most: float) -> float:
        total = 0.0
        for seed in seeds:
            epochs = train(case, batch_size, rate, seed, epochs=min(case.max_epochs, most - total)).epochs
            if epochs is None:
                return math.inf
            total += epochs
        return total

    best, least = start, all_epochs(start, math.inf)
    for factor in (2.0, 0.5):
        for number in itertools.count(1):
            rate = start * factor**number
            epochs = all_epochs(rate, least)
            if epochs >= least:
                break
            best, least = rate, epochs
    return best


def measure(case: Case, *, tuning_seeds: Sequence[int], seeds: Sequence[int]) -> dict[str, Measured]:
    """Tune, and train with each batch size under both rules of learning rates."""
    tuned = {size: tuned_rate(case, size, tuning_seeds) for size in case.batch_sizes}
    sys.stderr.write(f"{case.name}: rates {tuned}\n")
    fixed = dict.fromkeys(case.batch_sizes, tuned[case.middle])
    known: dict[tuple[int, float], list[Run]] = {}
    for size, rate in [*tuned.items(), *fixed.items()]:
        if (size, rate) not in known:
            is_measured = size in {case.batch_sizes[0], case.middle}
            known[size, rate] = [
                train(case, size, rate, seed, epochs=case.max_epochs, is_measured=is_measured) for seed in seeds
            ]
    found = {
        rule: Measured(rates=rates, runs={size: known[size, rate] for size, rate in rates.items()})
        for rule, rates in ((TUNED, tuned), (FIXED, fixed))
    }
    for rule, measured in found.items():
        sys.stderr.write(f"{case.name}: {rule}, ln epochs {measured.means()}\n")
    return found
