"""What a training step changes beside its gradients, kept and put back: random numbers, and all that a model holds.

A model that holds something that could not be put back for certain is refused: TypeError names it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bso_client.integrations.kept_values import (
    CONTAINERS,
    PLAIN,
    KeptFields,
    KeptTensor,
    KeptValue,
    KeptVariable,
    fields_of,
    is_of_library,
    kept_value,
    put_back_all,
    remembered_in,
)

_MOST_BYTES = 2**28
"""Parameters that take no more are kept until the last step. More would leave less memory to what is probed."""


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """The generators of PyTorch (also of CUDA, where it is in use), of numpy and of Python."""
    numpy = sys.modules.get("numpy")
    own, of_cpu = random.getstate(), torch.get_rng_state()
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    of_numpy = None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(own)
        torch.set_rng_state(of_cpu)
        if of_gpus is not None:
            torch.cuda.set_rng_state_all(of_gpus)
        if numpy is not None:
            numpy.random.set_state(of_numpy)


@contextmanager
def remembered_kept(loss_of: Any, *, data: Sequence[Any], model: nn.Module) -> Iterator[None]:
    """What a loss closes over, and what the objects of ``data`` hold: generators, numbers, words and containers.

    Of other objects that it closes over nothing is kept, and neither are globals.
    """
    known: dict[int, Any] = {id(each): each for each in model.modules()}
    kept = list(remembered_in(loss_of, known, follows_objects=False))
    kept += [each for value in data for each in remembered_in(value, known, follows_objects=True)]
    try:
        yield
    finally:
        put_back_all(kept)


class KeptModel:
    """A model as it is now, with gradients, modules, buffers, hooks and whatever else its modules hold.

    Where parameters that are trained, or frozen ones, are many, they are kept only ``with_many``: hardly any step
    writes them. Gradients are set aside, and their hooks do not run, until all is put back. Objects in ``beside`` are
    not kept, even where modules refer to them.
    """

    def __init__(self, model: nn.Module, *, with_many: bool, beside: Sequence[object] = ()) -> None:
        modules = list(model.modules())
        if any(_is_compiled(module) for module in modules):
            raise TypeError("the model is compiled, and would be compiled again for each batch size")
        parameters, buffers = list(model.parameters()), list(model.buffers())
        known: dict[int, Any] = {id(each): each for each in (*parameters, *buffers, *modules, *beside)}
        trained = [each for each in parameters if each.requires_grad]
        frozen = [each for each in parameters if not each.requires_grad]
        few_frozen, few_trained = _are_few(frozen), _are_few(trained)
        self._tensors = [KeptTensor(each, "a buffer") for each in buffers]
        self._tensors += [KeptTensor(each, "a parameter") for each in frozen] if few_frozen else []
        self._trained = [KeptTensor(each, "a parameter") for each in trained] if few_trained else []
        many = [*(() if few_frozen else frozen), *(() if few_trained else trained)]
        self._many = [KeptTensor(each, "a parameter") for each in many] if with_many else []
        self._objects: list[KeptValue] = [
            KeptFields(each, fields_of(each, known, type(each).__name__))
            for each in (*parameters, *modules)
            if vars(each)
        ]
        self._objects += _of_classes(modules, known)
        self._set_aside = [_Gradients(each) for each in parameters]

    @property
    def changes_parameters(self) -> bool:
        """Whether parameters that are trained, or many, and were kept have changed."""
        return any(each.has_changed for each in (*self._trained, *self._many))

    def forget_many(self) -> None:
        """A step has left many parameters as they are."""
        self._many = []

    def put_back(self) -> None:
        """Make all as it was. Raises NotPutBack where something could not be."""
        put_back_all((*self._objects, *self._tensors, *self._trained, *self._many, *self._set_aside))


class _Gradients(KeptValue):
    """The gradient of a parameter, and the hooks that it calls: set aside from the beginning. Whether it has one."""

    def __init__(self, value: nn.Parameter) -> None:
        super().__init__(value, "a gradient")
        self._is_trained = value.requires_grad
        self._gradient, value.grad = value.grad, None
        self._hooks: Any = value._backward_hooks  # noqa: SLF001  # no other way to a hook that Tensor.register_hook made
        self._called = dict(self._hooks or {})
        if self._hooks:
            self._hooks.clear()

    def put_back(self) -> None:
        """Give them to it again."""
        if self.value.requires_grad != self._is_trained:
            self.value.requires_grad_(self._is_trained)
        self.value.grad = self._gradient
        if self._called:
            self._hooks.clear()
            self._hooks.update(self._called)


def _of_classes(modules: Sequence[nn.Module], known: dict[int, Any]) -> list[KeptValue]:
    """What the classes of modules hold beside functions: a counter of all their objects, for example."""
    classes = dict.fromkeys(kind for module in modules for kind in type(module).__mro__ if kind is not object)
    return [
        KeptVariable(kept_value(value, known, f"{kind.__name__}.{name}"), partial(setattr, kind, name))
        for kind in classes
        if not is_of_library(kind)
        for name, value in vars(kind).items()
        if not name.startswith("__") and isinstance(value, (*PLAIN, *CONTAINERS, Tensor))
    ]


def _are_few(parameters: Sequence[nn.Parameter]) -> bool:
    taken: int = sum(each.numel() * each.element_size() for each in parameters)
    return taken <= _MOST_BYTES


def _is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled by itself, in place, or by Lightning."""
    return any(
        getattr(module, name, None) is not None for name in ("_orig_mod", "_compiled_call_impl", "_compiler_ctx")
    )
