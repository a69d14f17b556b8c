"""Jobs in phases: they move to another kind of GPU on the way, or get another target metric, a new version.

Both are written ``WHAT@N``: the GPU that the job moves from (``v100@30``), or the target metric of its new version
(``0.65@30``); from recurrence N on (2 or later) the job is on its own GPU, or has that target.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bso.domain.frozen_values import replace
from bso.simulator.errors import InvalidSimulation
from bso.simulator.problem import BatchSizeProblem, JobPhase, make_problem
from bso.simulator.traces import PowerTrace, TrainTrace

MOVE_EXAMPLE, VERSION_EXAMPLE = "v100@30", "0.65@30"
_CHANGE = re.compile(r"(?P<what>.+)@(?P<start>\d{1,9})")

Made = Callable[[str, float], BatchSizeProblem]
"""The problem of a job on a GPU with a target metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Before recurrence ``start`` the job runs on another GPU, and from then on its own one."""

    gpu: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """From recurrence ``start`` on the job is registered with another target metric."""

    target_metric: float
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What makes phases of a job."""

    move: Move | None = None
    new_version: NewVersion | None = None


NO_CHANGES = Changes()


def parse_changes(*, move_from: str = "", new_version: str = "") -> Changes:
    """Read both as they are written above; an empty text is no change. Raises InvalidSimulation with an example."""
    return Changes(
        move=_move(move_from.strip()) if move_from.strip() else None,
        new_version=_new_version(new_version.strip()) if new_version.strip() else None,
    )


def in_phases(own: BatchSizeProblem, changes: Changes, made: Made) -> BatchSizeProblem:
    """A problem as it is in the end, with its earlier phases. Raises InvalidSimulation for a change that is none.

    Its batch sizes are those for which every phase says whether they fit in memory: they were measured on every GPU,
    or they are larger than the largest measured on some GPU, and are infeasible there.
    """
    if changes == NO_CHANGES:
        return own
    _check(own, changes)
    parts = {start: made(_gpu_at(own, changes, start), _target_at(own, changes, start)) for start in _starts(changes)}
    sizes = _shared_sizes(tuple(parts.values()))
    *earlier, last = (_with_sizes(part, sizes, own, changes, made) for part in parts.values())
    untils = list(parts)[1:]
    phases = (JobPhase(problem=problem, until=until) for problem, until in zip(earlier, untils, strict=True))
    return replace(last, earlier=tuple(phases))


def in_phases_of_traces(
    problems: Sequence[BatchSizeProblem], changes: Changes, train: TrainTrace, powers: Sequence[PowerTrace]
) -> tuple[BatchSizeProblem, ...]:
    """Problems of these traces, each with its earlier phases.

    Raises InvalidSimulation where the traces do not hold the GPU or the target metric of a phase.
    """
    by_gpu = {power.gpu: power for power in powers}
    if changes.move is not None and changes.move.gpu not in by_gpu:
        raise InvalidSimulation(
            f"there is no power trace of GPU {changes.move.gpu} to move from; there is {', '.join(by_gpu)}"
        )

    def phases_of(own: BatchSizeProblem) -> BatchSizeProblem:
        return in_phases(
            own,
            changes,
            lambda gpu, target: make_problem(replace(own.workload, target_metric=target), train, by_gpu[gpu]),
        )

    return tuple(map(phases_of, problems))


def _move(text: str) -> Move:
    gpu, start = _parts(text, "move", MOVE_EXAMPLE)
    return Move(gpu=gpu, start=start)


def _new_version(text: str) -> NewVersion:
    target, start = _parts(text, "new version", VERSION_EXAMPLE)
    try:
        number = float(target)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidSimulation(
            f"new version {text!r} must begin with a finite number, its target metric, as in {VERSION_EXAMPLE}; "
            f"got {target!r}"
        )
    return NewVersion(target_metric=number, start=start)


def _parts(text: str, change: str, example: str) -> tuple[str, int]:
    found = _CHANGE.fullmatch(text)
    if found is None:
        raise InvalidSimulation(f"{change} {text!r} is not understood; an example is {example}")
    start = int(found["start"])
    if start < 2:
        raise InvalidSimulation(f"{change} {text!r} must begin at recurrence 2 or later, got {start}")
    return found["what"], start


def _check(own: BatchSizeProblem, changes: Changes) -> None:
    if changes.move is not None and changes.move.gpu == own.gpu:
        raise InvalidSimulation(f"{own.name} cannot move from {own.gpu}, its own GPU: expected another one")
    if changes.new_version is not None and changes.new_version.target_metric == own.workload.target_metric:
        raise InvalidSimulation(
            f"{own.name} has target metric {own.workload.target_metric:g} from the beginning: expected another one for "
            "its new version"
        )


def _starts(changes: Changes) -> tuple[int, ...]:
    """The first recurrence of each phase."""
    return tuple(sorted({1, *(one.start for one in (changes.move, changes.new_version) if one is not None)}))


def _gpu_at(own: BatchSizeProblem, changes: Changes, recurrence: int) -> str:
    move = changes.move
    return own.gpu if move is None or recurrence >= move.start else move.gpu


def _target_at(own: BatchSizeProblem, changes: Changes, recurrence: int) -> float:
    version = changes.new_version
    return own.workload.target_metric if version is None or recurrence < version.start else version.target_metric


def _shared_sizes(parts: Sequence[BatchSizeProblem]) -> frozenset[int]:
    """Those of all parts, and those larger than what a part has; smaller ones would fit there, at an unknown price."""
    largest = [part.batch_sizes[-1] for part in parts]
    sizes = frozenset(
        size
        for size in frozenset[int]().union(*(part.batch_sizes for part in parts))
        if all(size in part.runs or size > most for part, most in zip(parts, largest, strict=True))
    )
    if not sizes.intersection(*(part.batch_sizes for part in parts)):
        raise InvalidSimulation(
            f"{parts[-1].name} was measured with other batch sizes than on {parts[0].gpu}: "
            f"{', '.join(map(str, parts[-1].batch_sizes))} and {', '.join(map(str, parts[0].batch_sizes))}"
        )
    return sizes


def _with_sizes(
    part: BatchSizeProblem, sizes: frozenset[int], own: BatchSizeProblem, changes: Changes, made: Made
) -> BatchSizeProblem:
    """A phase with these batch sizes; those that were not measured do not fit in memory, and their price is not paid.

    Epochs to the target do not depend on the GPU, so theirs are those of the other one.
    """
    missing = sizes - part.runs.keys()
    runs, epochs = dict(part.runs), dict(part.epochs)
    if missing and changes.move is not None:
        other = made(changes.move.gpu if part.gpu == own.gpu else own.gpu, part.workload.target_metric)
        runs |= {size: other.runs[size] for size in missing}
        epochs |= dict.fromkeys(missing, part.epochs[part.batch_sizes[-1]])
    return replace(
        part,
        runs={size: runs[size] for size in sorted(sizes)},
        epochs={size: epochs[size] for size in sorted(sizes)},
        infeasible=(part.infeasible | missing) & sizes,
    )
