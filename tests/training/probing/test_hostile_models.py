"""Models, losses and data that remember more than tensors: a training that probes is the same, bit by bit."""

import random
from collections import OrderedDict, UserDict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bso_client.integrations.probe_step import ProbeStep

FEATURES, CLASSES, SAMPLES = 12, 3, 96
_GENERATOR = torch.Generator().manual_seed(5)
INPUTS = torch.randn(SAMPLES, FEATURES, generator=_GENERATOR)
LABELS = torch.randint(0, CLASSES, (SAMPLES,), generator=_GENERATOR)
TENSORS = TensorDataset(INPUTS, LABELS)

LossOf = Callable[[Any], Tensor]
MakeLoss = Callable[[nn.Module], LossOf]


class Attributes(OrderedDict[str, Any]):
    """A dictionary with attributes, and methods of its own."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.reads = 0

    def clear(self) -> None:
        """Refused, as by a dictionary that is only read."""
        raise TypeError("cannot be cleared")


class Hostile(nn.Module):  # type: ignore[misc]  # torch is Any here
    """Two linear layers; ``disturb`` computes with what the module remembers, and changes that."""

    calls_of_all = 0

    def __init__(self, disturb: Callable[["Hostile", Tensor], Tensor], prepare: Callable[["Hostile"], None]) -> None:
        super().__init__()
        self.first, self.linear = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
        prepare(self)
        self._disturb = disturb

    def forward(self, value: Tensor) -> Tensor:
        return self._disturb(self, self.linear(self.first(value)))


def of_user_dict(module: Hostile, out: Tensor) -> Tensor:
    module.known["calls"] = module.known["calls"] + 1
    return out + 0.01 * module.known["calls"]


def of_attributes(module: Hostile, out: Tensor) -> Tensor:
    module.known["calls"] += 1
    module.known.reads += 1
    return out + 0.01 * module.known["calls"] + 0.01 * module.known.reads


def of_lazy_buffer(module: Hostile, out: Tensor) -> Tensor:
    name = f"scale_{len(out)}"
    if not hasattr(module, name):
        module.register_buffer(name, torch.full((CLASSES,), 1.0 + 0.1 * len(list(module.buffers()))))
    return out * getattr(module, name)


def of_lazy_module(module: Hostile, out: Tensor) -> Tensor:
    if not hasattr(module, "second"):
        module.second = nn.Linear(CLASSES, CLASSES)
    with torch.no_grad():
        shift = module.second(out)
    return out + shift


def of_copied_module(module: Hostile, out: Tensor) -> Tensor:
    module.calls += 1
    if module.calls % 3 == 0:
        module.target = deepcopy(module.linear)
    return out + 0.1 * module.target.weight.detach().mean()


def of_frozen_layer(module: Hostile, out: Tensor) -> Tensor:
    module.calls += 1
    module.linear.bias.requires_grad_(module.calls % 5 != 0)
    return out


def of_replaced_memory(module: Hostile, out: Tensor) -> Tensor:
    module.seen.data = torch.cat([module.seen.data, out.detach().mean().reshape(1)])
    return out + 0.1 * module.seen.mean()


def of_partial(module: Hostile, out: Tensor) -> Tensor:
    return out + 0.01 * module.count(1)


def of_generators(module: Hostile, out: Tensor) -> Tensor:
    of_torch = torch.rand((), generator=module.torch_draws)
    return out + 0.1 * (module.draws.random() + module.numpy_draws.random() + of_torch)


def of_class(module: Hostile, out: Tensor) -> Tensor:
    type(module).calls_of_all += 1
    return out + 0.01 * type(module).calls_of_all


def of_note_on_parameter(module: Hostile, out: Tensor) -> Tensor:
    module.linear.weight.calls = getattr(module.linear.weight, "calls", 0) + 1
    return out + 0.01 * module.linear.weight.calls


def unchanged(module: Hostile, out: Tensor) -> Tensor:
    return out


def counting(noted: list[int], by: int) -> int:
    noted.append(by)
    return len(noted)


def with_forward_hook(module: Hostile) -> None:
    calls = 0

    def shift(_module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return out + 0.01 * calls

    module.linear.register_forward_hook(shift)


def with_backward_hook(module: Hostile) -> None:
    seen: list[float] = []

    def scale(_module: nn.Module, inputs: Any, gradients: Any) -> Any:
        seen.append(float(gradients[0].abs().mean()))
        return tuple(each * (1.0 + len(seen) / 100) for each in inputs)

    module.linear.register_full_backward_hook(scale)


def with_gradient_hook(module: Hostile) -> None:
    norms: list[float] = []

    def clip(gradient: Tensor) -> Tensor:
        norms.append(float(gradient.norm()))
        return gradient / (1.0 + sum(norms) / len(norms))

    module.linear.weight.register_hook(clip)


def with_target(module: Hostile) -> None:
    module.calls, module.target = 0, nn.Linear(FEATURES, CLASSES)


def with_generators(module: Hostile) -> None:
    module.draws, module.numpy_draws = random.Random(1), np.random.default_rng(1)  # what layers do
    module.torch_draws = torch.Generator().manual_seed(1)


HOSTILE = {
    "a mapping that is no dict": (of_user_dict, lambda module: setattr(module, "known", UserDict(calls=0))),
    "a dict of a class of its own": (of_attributes, lambda module: setattr(module, "known", Attributes(calls=0))),
    "a buffer for each batch size": (of_lazy_buffer, lambda module: None),
    "a layer that is made when it is needed": (of_lazy_module, lambda module: None),
    "a layer that is replaced": (of_copied_module, with_target),
    "a layer that is trained now and then": (of_frozen_layer, lambda module: setattr(module, "calls", 0)),
    "a tensor that grows": (of_replaced_memory, lambda module: module.register_buffer("seen", torch.zeros(1))),
    "a partial": (of_partial, lambda module: setattr(module, "count", partial(counting, []))),
    "generators of its own": (of_generators, with_generators),
    "a counter of its class": (of_class, lambda module: setattr(Hostile, "calls_of_all", 0)),
    "a note on a parameter": (of_note_on_parameter, lambda module: None),
    "a forward hook": (unchanged, with_forward_hook),
    "a backward hook": (unchanged, with_backward_hook),
    "a hook of a gradient": (unchanged, with_gradient_hook),
}


def plain_loss(model: nn.Module) -> LossOf:
    return lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1])


def annealed_loss(model: nn.Module) -> LossOf:
    calls, weights = 0, {"last": 0.0}
    draws = torch.Generator().manual_seed(2)

    def loss_of(batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        weights["last"] += 0.01
        noise = torch.randn(batch[0].shape, generator=draws)
        out = model(batch[0] + 0.1 * noise)
        return nn.functional.cross_entropy(out, batch[1]) * (1.0 + 0.01 * calls) + weights["last"] * out.square().mean()

    return loss_of


def adversarial_loss(model: nn.Module) -> LossOf:
    """It has a backward pass inside, whose gradients of the weights stay."""

    def loss_of(batch: Any) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        nn.functional.cross_entropy(model(inputs), batch[1]).backward()
        assert inputs.grad is not None
        moved = batch[0] + 0.1 * inputs.grad.sign()
        return nn.functional.cross_entropy(model(moved), batch[1])

    return loss_of


class Drawn(Dataset[tuple[Tensor, Tensor]]):  # type: ignore[misc]  # torch is Any here
    """Data changed at random, by a generator of its own, and by how much was read."""

    def __init__(self) -> None:
        self.draws = random.Random(3)  # what scripts do
        self.transform = Shift()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.transform(INPUTS[index]) * (1.0 + 0.1 * self.draws.random()), LABELS[index]


class Shift:
    """A transformation with a generator and a counter."""

    def __init__(self) -> None:
        self.draws, self.calls = np.random.default_rng(4), 0

    def __call__(self, value: Tensor) -> Tensor:
        self.calls += 1
        return value + 0.01 * self.draws.random() + 1e-4 * self.calls


class Collating:
    """Puts batches together with noise from a generator of its own, as some collators for language models do."""

    def __init__(self) -> None:
        self.draws = torch.Generator().manual_seed(6)

    def __call__(self, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        inputs = torch.stack([one for one, _ in samples])
        noise = torch.randn(inputs.shape, generator=self.draws)
        return inputs + 0.1 * noise, torch.stack([label for _, label in samples])


def probe(step: ProbeStep, *sizes: int) -> None:
    with step:
        for size in sizes:
            step(size)


def trained(
    model: nn.Module,
    *,
    probes: bool,
    make_loss: MakeLoss = plain_loss,
    dataset: Dataset[Any] = TENSORS,
    collate: Any = None,
) -> tuple[list[float], list[Tensor]]:
    """The curve of a small training, and its parameters and buffers at the end."""
    torch.manual_seed(1)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = make_loss(model)
    step, curve = ProbeStep(model, loss_of, loader), []
    for _ in range(3):
        model.train()
        for batch in loader:
            loss = loss_of(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()  # after the step: what a probe leaves would count in the next one
            curve.append(float(loss.detach()))
        model.eval()
        if probes:
            probe(step, *(8,) * 4, *(16,) * 4, *(40,) * 4)
    return curve, [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


def made(name: str) -> Hostile:
    torch.manual_seed(0)
    disturb, prepare = HOSTILE[name]
    return Hostile(disturb, prepare)


def assert_same(one: tuple[list[float], list[Tensor]], other: tuple[list[float], list[Tensor]]) -> None:
    assert one[0] == other[0]
    assert len(one[1]) == len(other[1])
    assert all(torch.equal(first, second) for first, second in zip(one[1], other[1], strict=True))


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_model_remembers_is_put_back(name: str) -> None:
    assert_same(trained(made(name), probes=False), trained(made(name), probes=True))


@pytest.mark.parametrize("make_loss", [annealed_loss, adversarial_loss])
def test_what_a_loss_remembers_is_put_back(make_loss: MakeLoss) -> None:
    def run(*, probes: bool) -> tuple[list[float], list[Tensor]]:
        torch.manual_seed(0)
        return trained(nn.Linear(FEATURES, CLASSES), probes=probes, make_loss=make_loss)

    assert_same(run(probes=False), run(probes=True))


@pytest.mark.parametrize("data", ["dataset", "collate"])
def test_what_data_remember_is_put_back(data: str) -> None:
    def run(*, probes: bool) -> tuple[list[float], list[Tensor]]:
        torch.manual_seed(0)
        model = nn.Linear(FEATURES, CLASSES)
        given: dict[str, Any] = {data: Drawn() if data == "dataset" else Collating()}
        return trained(model, probes=probes, **given)

    assert_same(run(probes=False), run(probes=True))


def test_a_pass_that_seldom_changes_what_is_trained_is_put_back_and_ends_the_probing() -> None:
    def changed_by_large_batches(module: Hostile, out: Tensor) -> Tensor:
        if len(out) > 20:
            with torch.no_grad():
                module.linear.weight.clamp_(-0.1, 0.1)
        return out

    model = Hostile(changed_by_large_batches, lambda module: None)
    before = model.linear.weight.detach().clone()
    step = ProbeStep(model, plain_loss(model), DataLoader(TENSORS))
    with pytest.raises(TypeError, match="changes parameters that are trained"):
        probe(step, 8, 40)
    assert torch.equal(model.linear.weight, before)
