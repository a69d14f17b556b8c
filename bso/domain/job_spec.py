"""What a user asks for: the specification of a recurring training job, its validation and its identity.

Field names are those of the Zeus library where it has the field. A request holds only what the user set; what is
missing is taken from the recorded specification, or from the defaults here at the first registration, and is then
recorded: a later release's defaults change no running job.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from bso.domain.errors import Rejected
from bso.domain.foreign_text import is_plain
from bso.domain.policies import default_policy, is_policy_name, policy_names

MAX_BATCH_SIZE = 2**31 - 1
MAX_BATCH_SIZES = 1000
MAX_VERSION_LENGTH = 120
_MOST_UNKNOWN = 5
_MOST_WRONG_SIZES = 5


class InvalidSpec(Rejected):
    """One or more fields of a job specification are out of range; ``problems`` says which and why."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems: dict[str, str] = dict(problems)
        super().__init__("; ".join(f"{name} {problem}" for name, problem in self.problems.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecIdentity:
    """The fields that make results comparable; another identity is another version of the job."""

    target_metric: float
    higher_is_better_metric: bool
    eta_knob: float
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A complete, valid specification.

    ``batch_sizes`` is sorted and holds ``default_batch_size``. ``eta_knob`` (0 to 1) weighs energy against time,
    ``beta_knob`` (1 or more, None: no trial is stopped for it) is the early-stopping threshold over the cheapest
    converged cost. ``window_size`` 0 means: learn from all trials since the last change point; else from the last
    window_size * len(batch_sizes). ``cost_budget`` [J] bounds a trial while nothing has converged. ``max_attempts``
    trials at most serve one recurrence, those not counted that were interrupted or cancelled; the last of them runs
    without a bound. ``min_saving``: a policy that minds it stays where it is unless it saves this share of the cost.
    ``probing_budget``: the share of a training's time that probing epoch costs of other batch sizes may take.
    """

    batch_sizes: tuple[int, ...]
    default_batch_size: int
    policy: str
    eta_knob: float = 0.5
    beta_knob: float | None = 2.0
    target_metric: float = 0.5
    higher_is_better_metric: bool = True
    max_epochs: int = 100
    num_pruning_rounds: int = 2
    window_size: int = 0
    mab_prior_mean: float = 0.0
    mab_prior_precision: float = 0.0
    mab_num_explorations: int = 2
    mab_seed: int | None = None
    version: str = ""
    cost_budget: float | None = None
    early_stopping: bool = True
    max_attempts: int = 3
    min_saving: float = 0.02
    probing_budget: float = 0.05

    @property
    def identity(self) -> SpecIdentity:
        """The fields whose change starts a new version of the job."""
        return SpecIdentity(
            target_metric=self.target_metric,
            higher_is_better_metric=self.higher_is_better_metric,
            eta_knob=self.eta_knob,
            version=self.version,
        )

    @property
    def observations_kept(self) -> int:
        """The number of ended trials that the window spans; 0: all."""
        return self.window_size * len(self.batch_sizes)

    def distance_to_target(self, metric: float) -> float:
        """How far a validation metric is from the target, in its own unit: 0 or less where it has reached it."""
        return self.target_metric - metric if self.higher_is_better_metric else metric - self.target_metric

    def reached_target(self, metric: float) -> bool:
        """Whether a validation metric is at the target or better; NaN and infinities never are."""
        if not math.isfinite(metric):
            return False
        return metric >= self.target_metric if self.higher_is_better_metric else metric <= self.target_metric


SPEC_FIELDS = tuple(field.name for field in fields(JobSpec))
IDENTITY_FIELDS = tuple(field.name for field in fields(SpecIdentity))


def resolve_spec(requested: Mapping[str, Any], recorded: JobSpec | None = None) -> JobSpec:
    """Complete a request with what is recorded (or the defaults) and check every field.

    Raises InvalidSpec naming each field that is unknown, of a wrong type, or out of range.
    """
    problems = _unknown(requested)
    values: dict[str, Any] = {}
    for name, raw in requested.items():
        if name not in SPEC_FIELDS:
            continue
        try:
            values[name] = _CHECKS[name](raw)
        except _Invalid as invalid:
            problems[name] = str(invalid)
    if recorded is None:
        values.setdefault("policy", default_policy())
        problems.update(
            {name: "is required" for name in ("batch_sizes", "default_batch_size") if name not in requested}
        )
    problems |= _default_problem(values, recorded, known_wrong=problems)
    if problems:
        raise InvalidSpec(problems)
    return replace(recorded, **values) if recorded is not None else JobSpec(**values)


def _default_problem(
    values: Mapping[str, Any], recorded: JobSpec | None, *, known_wrong: Collection[str]
) -> dict[str, str]:
    """That the default is none of the batch sizes, unless one of both is wrong by itself."""
    pair = ("batch_sizes", "default_batch_size")
    if any(name in known_wrong for name in pair):
        return {}
    sizes, default = (values[name] if name in values else getattr(recorded, name) for name in pair)
    if default in sizes:
        return {}
    return {"default_batch_size": f"must be one of batch_sizes ({', '.join(map(str, sizes))}), got {default}"}


def _unknown(requested: Mapping[str, Any]) -> dict[str, str]:
    """The first few unknown fields: a typing error must not silently train with a default."""
    unknown = [name for name in requested if name not in SPEC_FIELDS]
    known = ", ".join(SPEC_FIELDS)
    return {name[:80]: f"is unknown; known are {known}" for name in unknown[:_MOST_UNKNOWN]}


class _Invalid(Exception):
    """A field's value is not acceptable; the message completes the sentence that its name begins."""


def _integer(least: int, most: int) -> Callable[[object], int]:
    def check(raw: object) -> int:
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            raise _Invalid(f"must be a whole number from {least} to {most}, got {_shown(raw)}")
        return raw

    return check


def _number(least: float, most: float, words: str) -> Callable[[object], float]:
    def check(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise _Invalid(f"must be {words}, got {_shown(raw)}")
        try:
            number = float(raw)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and least <= number <= most):
            raise _Invalid(f"must be {words}, got {_shown(raw)}")
        return number

    return check


def _optional(check: Callable[[object], Any]) -> Callable[[object], Any]:
    return lambda raw: None if raw is None else check(raw)


def _boolean(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise _Invalid(f"must be True or False, got {_shown(raw)}")
    return raw


def _sizes(raw: object) -> tuple[int, ...]:
    if not isinstance(raw, list | tuple | range) or not 1 <= len(raw) <= MAX_BATCH_SIZES:
        raise _Invalid(f"must be a list of 1 to {MAX_BATCH_SIZES} whole numbers, got {_shown(raw)}")
    wrong = [size for size in raw if not _is_batch_size(size)]
    if wrong:
        named = ", ".join(map(_shown, wrong[:_MOST_WRONG_SIZES]))
        more = f" and {len(wrong) - _MOST_WRONG_SIZES} more" if len(wrong) > _MOST_WRONG_SIZES else ""
        raise _Invalid(f"must hold whole numbers from 1 to {MAX_BATCH_SIZE} only, got {named}{more}")
    sizes = [_BATCH_SIZE(size) for size in raw]
    twice = sorted({size for size in sizes if sizes.count(size) > 1})
    if twice:
        raise _Invalid(f"must not name a batch size twice, got {twice[0]} again")
    return tuple(sorted(sizes))


def _is_batch_size(raw: object) -> bool:
    try:
        _BATCH_SIZE(raw)
    except _Invalid:
        return False
    return True


def _policy(raw: object) -> str:
    if not isinstance(raw, str) or not is_policy_name(raw):
        raise _Invalid(f"must be the name of a policy, such as {', '.join(policy_names())}, got {_shown(raw)}")
    return raw


def _version(raw: object) -> str:
    if not isinstance(raw, str) or len(raw) > MAX_VERSION_LENGTH or not is_plain(raw):
        raise _Invalid(
            f"must be text of at most {MAX_VERSION_LENGTH} characters, none of them hidden, got {_shown(raw)}"
        )
    return raw


def _window(raw: object) -> int:
    size = _integer_of("window_size")(raw)
    if size == 1:
        raise _Invalid("must be 0 (learn from all trials) or at least 2, since one cost has no variance; got 1")
    return size


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 80 else f"{text[:77]}..."


SPEC_BOUNDS: Mapping[str, tuple[Any, Any]] = {
    "batch_sizes": (1, MAX_BATCH_SIZE),
    "default_batch_size": (1, MAX_BATCH_SIZE),
    "eta_knob": (0.0, 1.0),
    "beta_knob": (1.0, 1e300),
    "target_metric": (-1e300, 1e300),
    "max_epochs": (1, 10**9),
    "num_pruning_rounds": (0, 1000),
    "window_size": (0, 100_000),
    "mab_prior_mean": (-1e300, 1e300),
    "mab_prior_precision": (0.0, 1e300),
    "mab_num_explorations": (0, 1_000_000),
    "mab_seed": (0, 2**63 - 1),
    "cost_budget": (5e-324, 1e300),
    "max_attempts": (1, 1000),
    "min_saving": (0.0, 0.5),
    "probing_budget": (0.0, 0.5),
}
"""The least and the largest value of each field that holds numbers."""


def _integer_of(name: str) -> Callable[[object], int]:
    return _integer(*SPEC_BOUNDS[name])


def _number_of(name: str, words: str) -> Callable[[object], float]:
    return _number(*SPEC_BOUNDS[name], words)


_BATCH_SIZE = _integer_of("batch_sizes")
_CHECKS: Mapping[str, Callable[[object], Any]] = {
    "batch_sizes": _sizes,
    "default_batch_size": _BATCH_SIZE,
    "eta_knob": _number_of("eta_knob", "a number from 0 (time alone) to 1 (energy alone)"),
    "beta_knob": _optional(_number_of("beta_knob", "a number of 1 or more, or None for no early stopping")),
    "target_metric": _number_of("target_metric", "a finite number"),
    "higher_is_better_metric": _boolean,
    "max_epochs": _integer_of("max_epochs"),
    "num_pruning_rounds": _integer_of("num_pruning_rounds"),
    "window_size": _window,
    "mab_prior_mean": _number_of("mab_prior_mean", "a finite number"),
    "mab_prior_precision": _number_of("mab_prior_precision", "a finite number of 0 or more"),
    "mab_num_explorations": _integer_of("mab_num_explorations"),
    "mab_seed": _optional(_integer_of("mab_seed")),
    "policy": _policy,
    "version": _version,
    "cost_budget": _optional(_number_of("cost_budget", "a positive number of joules, or None for no budget")),
    "early_stopping": _boolean,
    "max_attempts": _integer_of("max_attempts"),
    "min_saving": _number_of("min_saving", "a share of the cost from 0 to 0.5"),
    "probing_budget": _number_of("probing_budget", "a share of the time from 0 (no probing) to 0.5"),
}
