"""What a training step changes beside gradients, kept and put back: random numbers, and all that a model holds."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device, torch.layout)
_STATELESS = (FunctionType, BuiltinFunctionType, MethodType, type, partial)
_GENERATORS = (random.Random, torch.Generator)  # no copy shows what they give next
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module: parameters, buffers, modules, hooks."""


class NotPutBack(RuntimeError):
    """A step has changed something of a model that could not be changed back."""


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


class KeptModel:
    """A model as it is now. Parameters that are trained are kept only ``with_parameters``: hardly any step writes them.

    Objects in ``beside`` are not kept, even where modules refer to them.

    Raises TypeError, which names it, where a module holds something that could not be put back.
    """

    def __init__(self, model: nn.Module, *, with_parameters: bool, beside: Sequence[object] = ()) -> None:
        modules = list(model.modules())
        if any(_is_compiled(module) for module in modules):
            raise TypeError("the model is compiled, and would be compiled again for each batch size")
        parameters, buffers = list(model.parameters()), list(model.buffers())
        known: dict[int, Any] = {id(each): each for each in (*parameters, *buffers, *modules, *beside)}
        trained = [each for each in parameters if each.requires_grad]
        frozen = [each for each in parameters if not each.requires_grad]
        self._registered = [(module, _registered(module)) for module in modules]
        self._tensors = [_KeptTensor(each) for each in (*buffers, *frozen)]
        self._parameters = [_KeptTensor(each) for each in trained] if with_parameters else []
        self._attributes = [(module, _attributes_of(module, known)) for module in modules]

    @property
    def changes_parameters(self) -> bool:
        """Whether parameters that are trained, and were kept, have changed."""
        return any(each.has_changed for each in self._parameters)

    def forget_parameters(self) -> None:
        """A step has left them as they are."""
        self._parameters = []

    def put_back(self) -> None:
        """Make all as it was. Raises NotPutBack where something could not be."""
        errors: list[str] = []
        for module, then in self._registered:
            now = _registered(module)
            for name in {each for each in now | then if now.get(each) is not then.get(each)}:
                setattr(module, name, then.get(name))
        for tensor in (*self._tensors, *self._parameters):
            _try(tensor.put_back, "a tensor", errors)
        for module, attributes in self._attributes:
            for name in [
                each for each, value in vars(module).items() if each not in attributes and _is_state(each, value)
            ]:
                delattr(module, name)
            for name, kept in attributes.items():
                vars(module)[name] = kept.value
                _try(kept.put_back, f"{type(module).__name__}.{name}", errors)
        if errors:
            raise NotPutBack(f"a step has changed what could not be changed back: {'; '.join(errors)}")


class _Kept:
    """A value that cannot be changed, or is another's to put back."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def put_back(self) -> None:
        """It is as it was."""


class _KeptTensor(_Kept):
    """A tensor, whose storage others may share."""

    def __init__(self, value: Tensor) -> None:
        super().__init__(value)
        self._saved = value.detach().clone()

    @property
    def has_changed(self) -> bool:
        """Whether it is another value now."""
        return not torch.equal(self.value.detach(), self._saved)

    def put_back(self) -> None:
        """Copy what it was into it, if it has changed."""
        if self.has_changed:
            with torch.no_grad():
                self.value.detach().copy_(self._saved)


class _KeptItems(_Kept):
    """A list, dictionary, set or the like: which items it has, and in which order; and what they are."""

    def __init__(self, value: Any, items: Sequence[_Kept]) -> None:
        super().__init__(value)
        self._saved = copy.copy(value)
        self._items = items

    def put_back(self) -> None:
        """Fill it as it was, and put its items back."""
        if not isinstance(self.value, tuple | frozenset):
            self.value.clear()
            fill = self.value.update if isinstance(self.value, dict | set) else self.value.extend
            fill(self._saved)
        for item in self._items:
            item.put_back()


class _KeptFields(_Kept):
    """An object: its attributes, and what they are."""

    def __init__(self, value: Any, fields: Mapping[str, _Kept]) -> None:
        super().__init__(value)
        self._fields = fields

    def put_back(self) -> None:
        """Give it its attributes, and put them back."""
        held = vars(self.value)
        held.clear()
        held.update({name: kept.value for name, kept in self._fields.items()})
        for kept in self._fields.values():
            kept.put_back()


def _is_compiled(module: nn.Module) -> bool:
    """Whether a module is compiled by itself, in place, or by Lightning."""
    return any(
        getattr(module, name, None) is not None for name in ("_orig_mod", "_compiled_call_impl", "_compiler_ctx")
    )


def _registered(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module itself, by name."""
    parameters = module.named_parameters(recurse=False, remove_duplicate=False)
    return dict((*parameters, *module.named_buffers(recurse=False, remove_duplicate=False)))


def _attributes_of(module: nn.Module, known: dict[int, Any]) -> dict[str, _Kept]:
    """What a module holds beside parameters, buffers, modules and hooks; what is ``known``, by id, is kept already."""
    return {
        name: _kept(value, known, f"{type(module).__name__}.{name}")
        for name, value in vars(module).items()
        if _is_state(name, value)
    }


def _kept(value: Any, known: dict[int, Any], name: str) -> _Kept:
    """A value as it is now. Raises TypeError where it could not be put back."""
    if id(value) in known or isinstance(value, (*_PLAIN, *_STATELESS)):
        return _Kept(value)
    if isinstance(value, Tensor):
        return _KeptTensor(value)
    if isinstance(value, nn.Module):
        raise TypeError(f"{name} holds a module that is not registered: a step could change it for good")
    known[id(value)] = value  # it may hold itself
    if isinstance(value, Mapping | list | tuple | set | frozenset | deque):
        items = value.values() if isinstance(value, Mapping) else value
        return _KeptItems(value, [_kept(item, known, name) for item in items])
    if _is_value(value):
        return _Kept(value)
    if isinstance(value, _GENERATORS) or not hasattr(value, "__dict__"):
        raise TypeError(f"{name} cannot be kept ({type(value).__name__}): a step could change it for good")
    return _KeptFields(value, {each: _kept(field, known, f"{name}.{each}") for each, field in vars(value).items()})


def _is_value(value: Any) -> bool:
    """Whether an object stands for its value, and so does not change: it is compared, and hashed, by that."""
    kind: Any = type(value)
    own: Any = object
    return kind.__eq__ is not own.__eq__ and kind.__hash__ not in (None, own.__hash__)


def _try(put_back: Any, what: str, errors: list[str]) -> None:
    try:
        put_back()
    except Exception as error:  # noqa: BLE001  # what comes after it is put back all the same
        errors.append(f"{what} ({error})")


def _is_state(name: str, value: Any) -> bool:
    return name not in _OF_TORCH and not isinstance(value, _STATELESS)
