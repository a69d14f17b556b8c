"""The arguments of both optimizers, and what is checked of them before anything is opened."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from bso.domain.hardware import HardwareKind
from bso.domain.identifiers import identifier_problem
from bso.domain.learning_rate import LearningRate, learning_rate_problems
from bso_client.energy.monitor import Monitor
from bso_client.errors import InvalidSetting
from bso_client.transports.transport import Transport

OnUnreachable = Literal["continue", "raise"]
OnConflictWord = Literal["new_version", "raise"]


_ZEUS_NAMES = {
    "server_url": "what Zeus calls server_url is url= (or BSO_URL) here",
    "job": "what Zeus calls job is the first argument here, a JobSpec",
    "rank": "what Zeus calls rank is found out here: make the optimizer on every rank",
}


class OptimizerOptions(TypedDict, total=False):
    """The keyword arguments of both optimizers; BatchSizeOptimizer explains them."""

    url: str | None
    state_dir: str | Path | None
    recurrence_id: str | None
    hardware: HardwareKind | None
    monitor: Monitor | None
    constant_power: float | None
    samples_per_epoch: float | None
    learning_rate: LearningRate | None
    unreachable_timeout: float
    on_unreachable: OnUnreachable
    on_conflict: OnConflictWord
    inherit: bool
    like: str | None
    transport: Transport | None
    uneven: bool
    data_parallel_group: Any
    rank_timeout: float


def check_options(options: OptimizerOptions) -> None:
    """Raise InvalidSetting, or TypeError for an unknown argument."""
    unknown = set(options) - set(OptimizerOptions.__annotations__)
    if unknown:
        raise TypeError("; ".join([f"unknown argument {', '.join(sorted(unknown))}", *_instead_of(unknown)]))
    positive: tuple[Literal["constant_power", "samples_per_epoch", "rank_timeout"], ...]
    positive = ("constant_power", "samples_per_epoch", "rank_timeout")
    for name in positive:
        value = options.get(name)
        if value is not None and not (_is_finite(value) and value > 0):
            raise InvalidSetting(f"{name} must be a positive number, got {value!r}")
    timeout = options.get("unreachable_timeout", 60.0)
    if not (_is_finite(timeout) and timeout >= 0):
        raise InvalidSetting(f"unreachable_timeout must be a number of seconds of 0 or more, got {timeout!r}")
    monitor, hardware = options.get("monitor"), options.get("hardware")
    if monitor is not None and not (hasattr(monitor, "begin_window") and hasattr(monitor, "end_window")):
        raise InvalidSetting(f"monitor must have begin_window(key) and end_window(key), got {type(monitor).__name__}")
    if hardware is not None and not isinstance(hardware, HardwareKind):
        raise InvalidSetting(f"hardware must be a bso_client.HardwareKind(...), got {hardware!r}")
    _check_learning_rate(options.get("learning_rate"))
    _check_word("on_unreachable", options.get("on_unreachable", "continue"), get_args(OnUnreachable))
    _check_word("on_conflict", options.get("on_conflict", "new_version"), get_args(OnConflictWord))
    _check_inheritance(options.get("inherit", True), options.get("like"))


def kind_of(given: object) -> str:
    """What was given instead of what is needed, for an error; with its module, since names may be the same."""
    kind = type(given)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return "nothing" if given is None else name


def _instead_of(unknown: Collection[str]) -> list[str]:
    """What these are called here where they are names that Zeus has, then all names."""
    known = ", ".join(OptimizerOptions.__annotations__)
    return [*(words for name, words in _ZEUS_NAMES.items() if name in unknown), f"known are {known}"]


def _check_learning_rate(rate: object) -> None:
    if rate is None:
        return
    if not isinstance(rate, LearningRate):
        raise InvalidSetting(
            f"learning_rate must be a bso_client.LearningRate(value, reference_batch_size=...), got {rate!r}: to be "
            "scaled, a rate needs the batch size at which it is right"
        )
    problems = learning_rate_problems(rate)
    if problems:
        raise InvalidSetting("; ".join(f"{name} {problem}" for name, problem in problems.items()))


def _check_inheritance(inherit: object, like: object) -> None:
    if not isinstance(inherit, bool):
        raise InvalidSetting(f"inherit must be True or False, got {inherit!r}")
    if like is None:
        return
    if problem := identifier_problem(like):
        raise InvalidSetting(f"like is the job_id of a job to inherit from: it {problem}")
    if not inherit:
        raise InvalidSetting(
            f"like={like!r} names a job to inherit from, but inherit=False lets the job inherit nothing: leave out one "
            "of them"
        )


def _is_finite(value: object) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]  # whatever the user gave
    except (TypeError, ValueError, OverflowError):
        return False


def _check_word(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidSetting(f"{name} must be one of {', '.join(known)}, got {value!r}")
