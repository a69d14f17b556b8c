"""A training that probes is, bit by bit, the training that does not: on models that a step would change."""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bso_client import InvalidSetting
from bso_client.energy.monitor import ConstantPowerMonitor
from bso_client.integrations.probe_step import ProbeStep
from bso_client.prober import Prober
from bso_client.training.state import Consumption

FEATURES, CLASSES, SAMPLES = 12, 3, 96
_GENERATOR = torch.Generator().manual_seed(5)
INPUTS = torch.randn(SAMPLES, FEATURES, generator=_GENERATOR)
LABELS = torch.randint(0, CLASSES, (SAMPLES,), generator=_GENERATOR)


class Doubled(torch.autograd.Function):  # type: ignore[misc]  # torch is Any here
    """An operation with a backward pass of its own, which counts its passes."""

    passes = 0

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return 2 * value

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        Doubled.passes += 1
        return 2 * gradient


class Stateful(nn.Module):  # type: ignore[misc]  # torch is Any here
    """A layer that remembers in Python what it has seen, and computes with it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[float] = []
        self.mean = torch.zeros(FEATURES)  # no buffer
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, value: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * value.detach().mean(dim=0)
        self.seen.append(float(value.detach().mean()))
        self.last_seen = len(self.seen)
        shift = 0.01 * self.calls + 0.1 * sum(self.seen) / len(self.seen)
        return Doubled.apply(self.linear(value - self.mean)) + shift


class Recurrent(nn.Module):  # type: ignore[misc]  # torch is Any here
    """An LSTM that carries its state from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 8, batch_first=True, num_layers=2, dropout=0.2)
        self.head = nn.Linear(8, CLASSES)
        self.carried: Tensor | None = None

    def forward(self, value: Tensor) -> Tensor:
        out, _ = self.lstm(value[:, None, :])
        out = out[:, 0]
        if self.carried is not None:
            out = out + self.carried
        self.carried = out.detach().mean(dim=0)
        return self.head(out)


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 2), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, CLASSES)
    )


def spectral() -> nn.Module:
    """Its normalization moves a buffer on in each forward pass."""
    return nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(FEATURES, 16)), nn.Tanh(), nn.Linear(16, CLASSES)
    )


class Augmented(Dataset[tuple[Tensor, Tensor]]):  # type: ignore[misc]  # torch is Any here
    """Data changed at random, by three generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift = random.random() + float(np.random.rand()) + float(torch.rand(()))  # what scripts do
        return INPUTS[index] + 0.1 * shift, LABELS[index]


@dataclass
class Training:
    """One small training; ``curve`` has the loss of each step, ``weights`` all that the model holds at its end."""

    curve: list[float]
    weights: dict[str, Tensor]


def trained(
    make: Callable[[], nn.Module],
    dataset: Dataset[Any],
    *,
    probes: bool,
    keeps_gradients: bool = False,
    is_entered: bool = True,
) -> Training:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # as above
    model = make()
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    loss_function = nn.CrossEntropyLoss()
    step = ProbeStep(model, lambda batch: loss_function(model(batch[0]), batch[1]), loader)
    curve = []
    for epoch in range(4):
        model.train()
        for inputs, labels in loader:
            if not keeps_gradients:
                optimizer.zero_grad()
            loss = loss_function(model(inputs), labels)
            loss.backward()
            optimizer.step()
            curve.append(float(loss.detach()))
        model.eval()
        schedule.step()
        if probes and epoch:
            with step if is_entered else nullcontext():
                for size in (8, 16, 64, 128):
                    for _ in range(5):
                        step(size)
    return Training(curve=curve, weights=model.state_dict())


@pytest.mark.parametrize("keeps_gradients", [False, True])
@pytest.mark.parametrize("dataset", [TensorDataset(INPUTS, LABELS), Augmented()], ids=["tensors", "augmented"])
@pytest.mark.parametrize("make", [perceptron, convolutional, spectral, Recurrent, Stateful])
def test_the_training_is_the_same_bit_by_bit(
    make: Callable[[], nn.Module], dataset: Dataset[Any], keeps_gradients: bool
) -> None:
    without = trained(make, dataset, probes=False, keeps_gradients=keeps_gradients)
    with_probes = trained(make, dataset, probes=True, keeps_gradients=keeps_gradients)
    assert with_probes.curve == without.curve
    assert all(torch.equal(with_probes.weights[name], value) for name, value in without.weights.items())


def test_the_steps_would_change_the_training_if_nothing_were_put_back() -> None:
    dataset = Augmented()
    without = trained(Stateful, dataset, probes=False)
    with_probes = trained(Stateful, dataset, probes=True, is_entered=False)
    assert with_probes.curve != without.curve


def test_modes_and_gradients_stay() -> None:
    model = perceptron()
    model[1].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    kept = model[0].weight.grad
    step = ProbeStep(model, lambda batch: model(batch[0]).sum(), DataLoader(TensorDataset(INPUTS, LABELS)))
    with step:
        step(4)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert model[0].weight.grad is kept
    assert model[4].weight.grad is None


def test_batches_are_as_large_as_they_are_asked_for_also_beyond_the_data() -> None:
    sizes: list[int] = []
    model = perceptron()

    def loss_of(batch: Any) -> Tensor:
        sizes.append(len(batch[0]))
        return model(batch[0]).sum()

    step = ProbeStep(model, loss_of, DataLoader(TensorDataset(INPUTS, LABELS), batch_size=16, drop_last=True))
    with step:
        for size in (4, 4, 500):
            step(size)
        assert sizes == [4, 4, 500]
    assert sizes == [], "what a loss notes is put back"


class Stream(IterableDataset[Tensor]):  # type: ignore[misc]  # torch is Any here
    def __iter__(self) -> Iterator[Tensor]:
        return iter(INPUTS)


def test_a_stream_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="the samples of this Stream come once"):
        ProbeStep(perceptron(), lambda batch: batch.sum(), DataLoader(Stream()))


class Configuration:
    """An object that all layers of a model share, and that its user holds, too."""

    def __init__(self) -> None:
        self.width = FEATURES
        self.history: list[int] = []


def test_what_is_shared_stays_the_same_object() -> None:
    model, shared = perceptron(), Configuration()
    for module in model:
        module.config = shared
    buffer, history = model[1].running_mean, shared.history

    def loss_of(batch: Any) -> Tensor:
        shared.history.append(len(batch[0]))
        shared.width += 1
        return model(batch[0]).sum()

    step = ProbeStep(model, loss_of, DataLoader(TensorDataset(INPUTS, LABELS)))
    with step:
        step(4)
        assert (shared.width, history) == (FEATURES + 1, [4])
    assert all(module.config is shared for module in model)
    assert (shared.width, shared.history) == (FEATURES, [])
    assert shared.history is history
    assert model[1].running_mean is buffer


def hidden_module(model: nn.Module) -> None:
    model.teacher = [nn.BatchNorm1d(FEATURES)]


def sparse(model: nn.Module) -> None:
    model.adjacency = torch.eye(3).to_sparse()


def graph(model: nn.Module) -> None:
    model.state = model[0](INPUTS[:2])


class Slotted:
    """An object that is not its attributes."""

    __slots__ = ("calls",)


def slots(model: nn.Module) -> None:
    model.settings = Slotted()


def iterator(model: nn.Module) -> None:
    model.rows = iter([1, 2, 3])


@pytest.mark.parametrize("change", [hidden_module, sparse, graph, slots, iterator])
def test_a_model_that_could_not_be_put_back_is_not_touched(change: Callable[[nn.Module], None]) -> None:
    model = perceptron()
    change(model)
    step = ProbeStep(model, lambda batch: model(batch[0]).sum(), DataLoader(TensorDataset(INPUTS, LABELS)))
    state = torch.get_rng_state()
    with pytest.raises(TypeError, match=r"Sequential\.\w+ (cannot be kept|holds a module|belongs to a step)"), step:
        pytest.fail("entered")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())


class Codebook(nn.Module):  # type: ignore[misc]  # torch is Any here
    """It moves a parameter in its forward pass, as vector quantization does; ``is_trained``: the optimizer, too."""

    def __init__(self, *, is_trained: bool) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.ones(FEATURES), requires_grad=is_trained)
        self.linear = nn.Linear(FEATURES, CLASSES)

    def forward(self, value: Tensor) -> Tensor:
        with torch.no_grad():
            self.codes.mul_(0.9).add_(0.1 * value.mean(dim=0))
        return self.linear(value * self.codes.detach())


def test_parameters_that_are_not_trained_are_put_back() -> None:
    model = Codebook(is_trained=False)
    step = ProbeStep(model, lambda batch: model(batch[0]).sum(), DataLoader(TensorDataset(INPUTS, LABELS)))
    with step:
        step(4)
        assert not torch.equal(model.codes, torch.ones(FEATURES))
    assert torch.equal(model.codes, torch.ones(FEATURES))


def test_a_model_that_changes_what_is_trained_is_put_back_and_not_probed() -> None:
    model = Codebook(is_trained=True)
    step = ProbeStep(model, lambda batch: model(batch[0]).sum(), DataLoader(TensorDataset(INPUTS, LABELS)))
    with pytest.raises(TypeError, match="changes parameters that are trained"), step:
        step(4)
    assert torch.equal(model.codes, torch.ones(FEATURES))


def test_an_optimizer_that_steps_in_the_backward_pass_takes_no_step() -> None:
    model = perceptron()
    steps: list[Tensor] = []
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(steps.append)
    step = ProbeStep(model, lambda batch: model(batch[0]).sum(), DataLoader(TensorDataset(INPUTS, LABELS)))
    with step:
        step(4)
    assert steps == []


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("is_whole", [True, False], ids=["the model", "a part of it"])
def test_a_compiled_model_is_not_compiled_again(is_whole: bool) -> None:
    model = torch.compile(perceptron()) if is_whole else nn.Sequential(torch.compile(perceptron()))
    step = ProbeStep(model, lambda batch: model(batch[0]).sum(), DataLoader(TensorDataset(INPUTS, LABELS)))
    with pytest.raises(TypeError, match="compiled"), step:
        pytest.fail("entered")


def test_workers_of_the_training_load_for_a_probe_too() -> None:
    model, sizes = perceptron(), []

    def loss_of(batch: Any) -> Tensor:
        sizes.append(len(batch[0]))
        return model(batch[0]).sum()

    step = ProbeStep(model, loss_of, DataLoader(TensorDataset(INPUTS, LABELS), num_workers=1))
    with step:
        step(4)
        step(8)
        assert sizes == [4, 8]


def test_a_prober_finds_batches_for_all_its_steps() -> None:
    model = perceptron()
    step = ProbeStep(model, lambda batch: model(batch[0]).sum(), DataLoader(TensorDataset(INPUTS, LABELS)))
    prober, epoch = Prober(ConstantPowerMonitor()), Consumption(time_s=1.0, energy_j=1.0)
    found = [prober.probe(step, (32,), own=16, epoch=epoch, allowance_s=60.0) for _ in range(2)]
    assert {16, 32} <= found[0].batch_sizes | found[1].batch_sizes


def test_a_step_that_raises_leaves_all_as_it_was() -> None:
    model = Stateful()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def loss_of(batch: Any) -> Tensor:
        model(batch[0])
        raise RuntimeError("CUDA out of memory")

    step = ProbeStep(model, loss_of, DataLoader(TensorDataset(INPUTS, LABELS)))
    with pytest.raises(RuntimeError, match="out of memory"), step:
        step(4)
    assert (model.calls, model.seen) == (0, [])
    assert not hasattr(model, "last_seen")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())
