"""What the trainings of each batch size came to, counted from the trials themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from bso.domain.job_spec import JobSpec
from bso.domain.trial import Outcome, Trial

LAST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The ended trials of a batch size. ``mean_cost`` [J] is of the last five that converged; None: none did."""

    ended: int
    converged: int
    mean_cost: float | None


def tallies(trials: Iterable[Trial], spec: JobSpec, *, version_number: int, hardware_key: str) -> dict[int, Tally]:
    """By batch size, those of one version on one hardware kind. A cost whose energy is incomplete is left out."""
    found: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.outcome and (trial.version_number, trial.hardware.key) == (version_number, hardware_key):
            found.setdefault(trial.batch_size, []).append(trial)
    return {batch_size: _tally(alike, spec) for batch_size, alike in found.items()}


def _tally(alike: list[Trial], spec: JobSpec) -> Tally:
    converged = [trial for trial in alike if Outcome.CONVERGED in (trial.outcome, trial.late_outcome)]
    costs = [trial.cost for trial in converged if trial.has_measured_cost(spec)]
    return Tally(ended=len(alike), converged=len(converged), mean_cost=fmean(costs[-LAST:]) if costs else None)
