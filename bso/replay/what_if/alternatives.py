"""What is compared: the job as it is, and as it would be with other knobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from bso.domain.errors import Rejected
from bso.domain.job_spec import InvalidSpec, JobSpec, resolve_spec
from bso.domain.policies import policy_named
from bso.replay.what_if.recorded import NotRecorded, Record

AS_IT_IS = "as it is"
MOST_ALTERNATIVES = 64


class TooMany(Rejected):
    """More combinations are asked for than anybody would read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Values to try of each knob, in every combination; none: the job's own. ``beta_knobs`` None: never stop early."""

    policies: Sequence[str] = ()
    eta_knobs: Sequence[float] = ()
    beta_knobs: Sequence[float | None] = ()
    window_sizes: Sequence[int] = ()
    batch_sizes: Sequence[Sequence[int]] = ()
    default_batch_sizes: Sequence[int] = ()

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Fields of the specification, those that are asked for."""
        knobs: Mapping[str, Sequence[Any]] = {
            "policy": self.policies,
            "eta_knob": self.eta_knobs,
            "beta_knob": self.beta_knobs,
            "window_size": self.window_sizes,
            "batch_sizes": self.batch_sizes,
            "default_batch_size": self.default_batch_sizes,
        }
        asked = {name: list(dict.fromkeys(map(_hashable, values))) for name, values in knobs.items() if values}
        for values in product(*asked.values()):
            yield dict(zip(asked, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A specification to be played with those of its batch sizes that are known, its default being among them.

    ``left_out`` says why of each of the job's batch sizes that is not. ``unknown``: why nothing can be said at all.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    spec: JobSpec
    batch_sizes: tuple[int, ...]
    default_batch_size: int
    left_out: Mapping[int, str] = field(default_factory=dict)
    unknown: str | None = None


def alternatives(record: Record, grid: Grid) -> tuple[Alternative, ...]:
    """The job as it is, and then each combination of the grid that is something else.

    Raises InvalidSpec for a value that no job may have, NotRecorded for a batch size that is none of the job's own and
    was never tried, TooMany.
    """
    combinations = [changes for changes in grid.combinations() if changes]
    if len(combinations) > MOST_ALTERNATIVES:
        raise TooMany(f"these are {len(combinations)} combinations; give at most {MOST_ALTERNATIVES}")
    found = [_alternative(record, {}), *(_alternative(record, changes) for changes in combinations)]
    kept: dict[str, Alternative] = {}
    for one in found:
        kept.setdefault(one.name, one)
    return tuple(kept.values())


_SIZES = ("batch_sizes", "default_batch_size")


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def _alternative(record: Record, asked: Mapping[str, Any]) -> Alternative:
    spec = _spec(record, asked)
    named = {*asked.get("batch_sizes", ()), *([asked["default_batch_size"]] if "default_batch_size" in asked else [])}
    changes = {name: value for name in asked if (value := getattr(spec, name)) != getattr(record.spec, name)}
    unknown = {size: why for size in spec.batch_sizes if (why := record.why_unknown(size)) is not None}
    known = tuple(size for size in spec.batch_sizes if size not in unknown)
    wanting = {size: unknown[size] for size in sorted(named & unknown.keys())}
    return Alternative(
        name=_name({name: getattr(spec, name) for name in asked if name in changes or (wanting and name in _SIZES)}),
        changes=changes,
        spec=spec,
        batch_sizes=known,
        default_batch_size=_default(spec, known),
        left_out={size: why for size, why in unknown.items() if size not in named},
        unknown=_why_nothing(record, spec, wanting, known),
    )


def _spec(record: Record, asked: Mapping[str, Any]) -> JobSpec:
    """The job's specification with what is asked for; its default batch size moves if it is no longer one of them."""
    fields = dict(asked)
    if "batch_sizes" in fields and "default_batch_size" not in fields:
        sizes = [size for size in fields["batch_sizes"] if isinstance(size, int)]
        if sizes and record.spec.default_batch_size not in sizes:
            fields["default_batch_size"] = _nearest(record.spec.default_batch_size, sizes)
    spec = resolve_spec(fields, record.spec)
    policy_named(spec.policy)  # raises PolicyMissing
    heard_of = {*record.spec.batch_sizes, *record.tried_batch_sizes}
    never = [size for size in spec.batch_sizes if size not in heard_of]
    if never:
        tried = ", ".join(map(str, record.tried_batch_sizes)) or "none"
        raise NotRecorded(f"batch size {never[0]} was never tried; recorded trials have {tried}")
    return spec


def _default(spec: JobSpec, known: Sequence[int]) -> int:
    if not known or spec.default_batch_size in known:
        return spec.default_batch_size
    return _nearest(spec.default_batch_size, known)


def _nearest(batch_size: int, among: Sequence[int]) -> int:
    """The largest that is not larger, else the smallest."""
    return max((size for size in among if size <= batch_size), default=min(among))


def _why_nothing(record: Record, spec: JobSpec, wanting: Mapping[int, str], known: Sequence[int]) -> str | None:
    """Why nothing can be said of a specification; ``wanting`` says it of batch sizes that were asked for."""
    if wanting:
        return "; ".join(f"{size}: {why}" for size, why in wanting.items())
    if not known:
        return "no batch size is known"
    if spec.eta_knob != 0.0 and not record.has_energy(record.known_batch_sizes):
        return "the energy was not measured: only eta 0 can be answered"
    return None


_WORDS = {
    "policy": "policy {}",
    "eta_knob": "eta {}",
    "beta_knob": "beta {}",
    "window_size": "window {}",
    "batch_sizes": "sizes {}",
    "default_batch_size": "default {}",
}


def _name(changes: Mapping[str, Any]) -> str:
    return ", ".join(_in_words(name, value) for name, value in changes.items()) or AS_IT_IS


def _in_words(name: str, value: Any) -> str:
    if value is None:
        return "never stopped early"
    if isinstance(value, tuple):
        return _WORDS[name].format(",".join(map(str, value)))
    return _WORDS[name].format(_exactly(value) if isinstance(value, float) else value)


def _exactly(value: float) -> str:
    """In as many digits as it takes, so that no two values have one name."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


__all__ = ["AS_IT_IS", "Alternative", "Grid", "InvalidSpec", "TooMany", "alternatives"]
