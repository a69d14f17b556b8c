"""Values as they are now, to be put back: tensors, containers, objects, functions and generators of random numbers.

What is held is followed through containers, objects and functions. Where something is found that could not be put back
for certain, TypeError names it.
"""

from __future__ import annotations

import collections
import logging
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), Enum, type, ModuleType, PurePath, logging.Logger),
    *(torch.dtype, torch.device, torch.layout, torch.Size),
)
_FROZEN_CONTAINERS = (tuple, frozenset)
CONTAINERS = (
    *(collections.OrderedDict, collections.defaultdict, collections.Counter, dict, list, set, collections.deque),
    *_FROZEN_CONTAINERS,
)
_OF_LIBRARIES = frozenset(
    {"torch", "transformers", "accelerate", "lightning", "pytorch_lightning", "numpy", "bso_client"}
)
"""Whose functions remember nothing of a training."""
_MOST_ITEMS, _MOST_OBJECTS, _DEPTH = 1000, 10_000, 4
"""How far objects are followed that are not of the model: items of one container, objects in all, and how deep."""


class NotPutBack(RuntimeError):
    """A step has changed something of a model that could not be changed back."""


def put_back_all(what: Sequence[KeptValue]) -> None:
    """Make all of it as it was. Raises NotPutBack where something could not be."""
    errors: list[str] = []
    for kept in what:
        try:
            kept.put_back()
        except Exception as error:  # noqa: BLE001  # what comes after it is put back all the same
            errors.append(f"{kept.name} ({error})")
    if errors:
        raise NotPutBack(f"a step has changed what could not be changed back: {'; '.join(errors)}")


class KeptValue:
    """A value that cannot be changed, or is another's to put back."""

    def __init__(self, value: Any, name: str = "") -> None:
        self.value = value
        self.name = name or type(value).__name__

    def put_back(self) -> None:
        """It is as it was."""


class KeptTensor(KeptValue):
    """A tensor, whose storage others may share."""

    def __init__(self, value: Tensor, name: str) -> None:
        super().__init__(value, name)
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise TypeError(f"{name} cannot be kept (a {value.layout} tensor)")
        if value.grad_fn is not None:
            raise TypeError(f"{name} belongs to a step of the training, whose gradients a probe would use up")
        self._then = value.detach()
        self._saved = self._then.clone()

    @property
    def has_changed(self) -> bool:
        """Whether it has other bits now."""
        return not (self._is_same_memory and torch.equal(_bits(self.value), _bits(self._saved)))

    @property
    def _is_same_memory(self) -> bool:
        now, then = self.value, self._then
        return (now.dtype, now.shape, now.stride(), now.data_ptr()) == (
            then.dtype,
            then.shape,
            then.stride(),
            then.data_ptr(),
        )

    def put_back(self) -> None:
        """Copy what it was into it, if it has changed."""
        if not self._is_same_memory:
            self.value.data = self._then
        if self.has_changed:
            with torch.no_grad():
                self._then.copy_(self._saved)


class _KeptItems(KeptValue):
    """A list, dictionary, set or the like: which items it has, and in which order; and what they are.

    ``kind`` is the container that it is, by whose methods it is filled: those of a class of somebody's own may do more.
    """

    def __init__(self, value: Any, kind: Any, items: Sequence[KeptValue]) -> None:
        super().__init__(value)
        self._kind = kind
        self._saved = list(kind.items(value)) if isinstance(value, dict) else list(kind.__iter__(value))
        self._items = items

    def put_back(self) -> None:
        """Fill it as it was, and put its items back."""
        if self._kind not in _FROZEN_CONTAINERS:
            self._kind.clear(self.value)
            fill = self._kind.update if isinstance(self.value, dict | set) else self._kind.extend
            fill(self.value, dict(self._saved) if isinstance(self.value, dict) else self._saved)
        for item in self._items:
            item.put_back()


class KeptFields(KeptValue):
    """An object: its attributes, and what they are."""

    def __init__(self, value: Any, fields: Mapping[str, KeptValue]) -> None:
        super().__init__(value)
        self._fields = fields

    def put_back(self) -> None:
        """Give it its attributes, and put them back."""
        held = vars(self.value)
        for name in held.keys() - self._fields.keys():
            del held[name]
        held.update({name: kept.value for name, kept in self._fields.items()})
        for kept in self._fields.values():
            kept.put_back()


class _KeptParts(KeptValue):
    """Something whose parts cannot be exchanged, such as a bound method; and the variables of a closure."""

    def __init__(self, value: Any, parts: Sequence[KeptValue]) -> None:
        super().__init__(value)
        self._parts = parts

    def put_back(self) -> None:
        """Put its parts back."""
        for kept in self._parts:
            kept.put_back()


class KeptVariable(KeptValue):
    """A variable of a closure, and what it is; or an attribute: ``set_value`` gives it its value again."""

    def __init__(self, content: KeptValue, set_value: Callable[[Any], None]) -> None:
        super().__init__(content.value)
        self._content = content
        self._set_value = set_value

    def put_back(self) -> None:
        """Give it its value, and put that back."""
        self._set_value(self.value)
        self._content.put_back()


class _KeptGenerator(KeptValue):
    """A generator of random numbers: of Python, PyTorch or numpy."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._state = _state_of(value)

    def put_back(self) -> None:
        """Let it go on from where it was."""
        _set_state(self.value, self._state)


def _bits(tensor: Tensor) -> Tensor:
    """Its bits: NaN is equal to itself, and -0 is not 0."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def fields_of(value: Any, known: dict[int, Any], name: str) -> dict[str, KeptValue]:
    """The attributes of an object; those of a module are its parameters, buffers, modules and hooks, too."""
    return {each: kept_value(field, known, f"{name}.{each}") for each, field in vars(value).items()}


def kept_value(value: Any, known: dict[int, Any], name: str) -> KeptValue:
    """A value as it is now; what is ``known``, by id, is kept already. Raises TypeError if it could not be put back."""
    if id(value) in known or isinstance(value, PLAIN):
        return KeptValue(value)
    if isinstance(value, Tensor):
        return KeptTensor(value, name)
    if isinstance(value, nn.Module):
        raise TypeError(f"{name} holds a module that is not registered: a step could change it for good")
    known[id(value)] = value  # it may hold itself
    if _is_generator(value):
        attributes = [KeptFields(value, fields_of(value, known, name))] if _has_dict(value) else []
        return _KeptParts(value, [_KeptGenerator(value), *attributes])
    if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | partial):
        return _kept_callable(value, known, name)
    if (kind := _container_of(value)) is not None:
        items = kind.values(value) if isinstance(value, dict) else kind.__iter__(value)
        kept = _KeptItems(value, kind, [kept_value(item, known, name) for item in items])
        attributes = [KeptFields(value, fields_of(value, known, name))] if _has_dict(value) else []
        return _KeptParts(value, [kept, *attributes])
    if _has_dict(value) and _adds_attributes_alone(type(value), object):
        return KeptFields(value, fields_of(value, known, name))
    if _is_value(value):
        return KeptValue(value)
    raise TypeError(f"{name} cannot be kept ({type(value).__name__}): a step could change it for good")


def _kept_callable(value: Any, known: dict[int, Any], name: str) -> KeptValue:
    """A function, method or partial with what it remembers."""
    if isinstance(value, partial):
        parts = (value.func, *value.args, value.keywords)
        return _KeptParts(value, [kept_value(each, known, name) for each in parts])
    if not isinstance(value, FunctionType):
        parts = (value.__self__, value.__func__) if isinstance(value, MethodType) else (value.__self__,)
        return _KeptParts(value, [kept_value(each, known, name) for each in parts])
    if is_of_library(value):
        return KeptValue(value)
    remembered = (value.__defaults__, value.__kwdefaults__, vars(value))
    variables = [
        KeptVariable(kept_value(cell.cell_contents, known, name), partial(_fill, cell)) for cell in _cells_of(value)
    ]
    return _KeptParts(value, [*variables, *(kept_value(each, known, name) for each in remembered)])


def remembered_in(
    value: Any, known: dict[int, Any], *, follows_objects: bool, depth: int = _DEPTH
) -> Iterator[KeptValue]:
    """What can be kept of something that is not of the model, in parts."""
    if id(value) in known or isinstance(value, (*PLAIN, Tensor, nn.Module)):
        return
    if depth < 0 or len(known) > _MOST_OBJECTS:
        return
    known[id(value)] = value
    inner = partial(remembered_in, known=known, depth=depth - 1, follows_objects=follows_objects)
    held: Iterable[Any] = ()
    if _is_generator(value):
        yield _KeptGenerator(value)
    elif isinstance(value, partial):
        held = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        held = (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        cells = [] if is_of_library(value) else _cells_of(value)
        yield from (KeptVariable(KeptValue(cell.cell_contents), partial(_fill, cell)) for cell in cells)
        held = [cell.cell_contents for cell in cells]
    elif type(value) in CONTAINERS and len(value) <= _MOST_ITEMS:
        yield _KeptItems(value, type(value), [])
        held = value.values() if isinstance(value, dict) else value
    elif follows_objects and _has_dict(value) and _adds_attributes_alone(type(value), object):
        fields = vars(value)
        plain = [each for each, field in fields.items() if isinstance(field, PLAIN)]
        yield from (KeptVariable(KeptValue(fields[each]), partial(fields.__setitem__, each)) for each in plain)
        held = fields.values()
    for each in held:
        yield from inner(each)


def is_of_library(value: Any) -> bool:
    """Whether a function or class is one of a library, which remembers nothing of a training."""
    package = str(value.__module__).partition(".")[0]
    return package in _OF_LIBRARIES or package in sys.stdlib_module_names


def _cells_of(function: Any) -> list[CellType]:
    """The variables that a function closes over, as far as they have a value."""
    return [cell for cell in function.__closure__ or () if _is_filled(cell)]


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _fill(cell: CellType, value: Any) -> None:
    cell.cell_contents = value


def _is_generator(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    of_numpy = () if numpy is None else (numpy.random.Generator, numpy.random.RandomState)
    return isinstance(value, (random.Random, torch.Generator, *of_numpy))


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _container_of(value: Any) -> Any:
    """The container that a value is, which may have attributes besides; None: it is none."""
    found: Any = next((kind for kind in CONTAINERS if isinstance(value, kind)), None)
    if found is None or type(value) is found or _adds_attributes_alone(type(value), found):
        return found
    is_named = isinstance(value, tuple) and not _has_dict(value)
    return found if is_named else None


def _adds_attributes_alone(kind: type, base: type) -> bool:
    """Whether objects of a class hold what those of the base hold, and attributes: no slots, nothing written in C."""
    has_slots = any({*_slots_of(each)} - {"__dict__", "__weakref__"} for each in kind.__mro__)
    return not has_slots and (kind.__basicsize__, kind.__itemsize__) == _sizes_of_plain(base)


def _slots_of(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


@cache
def _sizes_of_plain(base: type) -> tuple[int, int]:
    plain = type("Plain", (base,), {})
    return plain.__basicsize__, plain.__itemsize__


def _has_dict(value: Any) -> bool:
    return hasattr(value, "__dict__")


def _is_value(value: Any) -> bool:
    """Whether an object stands for its value, and so does not change: it is compared, and hashed, by that."""
    kind: Any = type(value)
    own: Any = object
    is_frozen = not hasattr(kind, "__dataclass_params__") or kind.__dataclass_params__.frozen
    return is_frozen and kind.__eq__ is not own.__eq__ and kind.__hash__ not in (None, own.__hash__)
