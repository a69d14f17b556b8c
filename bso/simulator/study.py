"""Many simulations: every case with every seed, spread over processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bso.simulator.drift import NO_DRIFT, Drift
from bso.simulator.noise import NO_NOISE, Noise
from bso.simulator.probes import Probing
from bso.simulator.problem import BatchSizeProblem
from bso.simulator.process_pool import spread
from bso.simulator.run import Run
from bso.simulator.simulation import Submission, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job to simulate. ``submissions`` None: it recurs back to back, as the settings say."""

    name: str
    problem: BatchSizeProblem
    submissions: tuple[Submission, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """What all simulations of a study have in common; the fields are those of ``simulate``."""

    spec_overrides: Mapping[str, Any] = field(default_factory=dict)
    recurrences: int | None = None
    overlap: int = 0
    drift: Drift = NO_DRIFT
    failure_rate: float = 0.0
    noise: Noise = NO_NOISE
    probing: Probing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRuns:
    """A case and its runs, one for each seed in the order of the seeds."""

    case: Case
    runs: tuple[Run, ...]


def study(
    cases: Sequence[Case],
    seeds: Sequence[int],
    settings: StudySettings,
    *,
    processes: int = 1,
    on_done: Callable[[Run], None] = lambda _: None,
) -> tuple[CaseRuns, ...]:
    """Simulate every case with every seed; the result does not depend on ``processes``.

    ``on_done`` receives each run as it ends. Raises InvalidSimulation as simulate does; what runs elsewhere then is
    given up.
    """
    calls = [partial(run_case, case, seed, settings) for case in cases for seed in seeds]
    runs = spread(calls, processes=processes, on_done=on_done)
    width = len(seeds)
    return tuple(
        CaseRuns(case=case, runs=tuple(runs[index * width : (index + 1) * width])) for index, case in enumerate(cases)
    )


def unseen_changes(cases: Sequence[Case], settings: StudySettings) -> dict[int, list[int]]:
    """By recurrence (1, 2, ...) at which something changes: how many recurrences the cases have that end before it.

    Changes are those of the drift, and the moves and new versions of the problems.
    """
    found: dict[int, list[int]] = {}
    for case in cases:
        usual = settings.recurrences or case.problem.default_recurrences
        last = usual if case.submissions is None else len(case.submissions)
        for start in settings.drift.starts | {phase.until for phase in case.problem.earlier}:
            if start > last:
                found.setdefault(start, []).append(last)
    return dict(sorted(found.items()))


def run_case(case: Case, seed: int, settings: StudySettings) -> Run:
    """One simulation."""
    return simulate(
        case.problem,
        settings.spec_overrides,
        recurrences=settings.recurrences,
        submissions=case.submissions,
        seed=seed,
        overlap=settings.overlap,
        drift=settings.drift,
        failure_rate=settings.failure_rate,
        noise=settings.noise,
        probing=settings.probing,
    )
