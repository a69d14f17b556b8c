"""Costs of recurrences, and of trainings, beside those of trainings with the default batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bso.domain.job_spec import JobSpec
from bso.domain.quantities import counted, percent
from bso.domain.statistics import CostStatistics, statistics_of
from bso.domain.trial import Outcome, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """By how much less so many costs are in the mean than others, as a share of the latter (0.5: half).

    ``error`` is the standard error of the share, None for fewer than two of each.
    """

    share: float
    error: float | None
    count: int
    others: int

    @property
    def words(self) -> str:
        """``48% ± 3% less``."""
        error = "" if self.error is None else f" ± {percent(self.error, 1)}"
        return f"{percent(abs(self.share))}{error} {'less' if self.share >= 0 else 'more'}"


def saved_in_words(found: Saving, spec: JobSpec) -> str:
    """A saving of recurrences as a sentence."""
    return (
        f"With all that was tried, a recurrence cost {found.words} than a training with the default batch size "
        f"{spec.default_batch_size} (means of {found.count} recurrences and {counted(found.others, 'training')})."
    )


def recurrence_costs(trials: Iterable[Trial]) -> list[float]:
    """What each recurrence cost with all its trials [J], in the order of their beginning."""
    costs: dict[str, float] = {}
    for trial in trials:
        costs[trial.recurrence_id] = costs.get(trial.recurrence_id, 0.0) + trial.cost
    return list(costs.values())


def converged_costs(trials: Iterable[Trial], batch_size: int | None) -> list[float]:
    """What the converged trials of a batch size cost [J]."""
    return [trial.cost for trial in trials if (trial.batch_size, trial.outcome) == (batch_size, Outcome.CONVERGED)]


def saving_of(costs: Sequence[float], others: Sequence[float]) -> Saving | None:
    """The difference of two means; its error by first-order propagation. None where there is nothing to compare."""
    found, other = statistics_of(costs), statistics_of(others)
    if not costs or not other.mean:
        return None
    ratio = found.mean / other.mean
    is_certain = min(found.count, other.count) > 1 and found.mean > 0
    error = ratio * math.hypot(_relative_error(found), _relative_error(other)) if is_certain else None
    return Saving(share=1 - ratio, error=error, count=found.count, others=other.count)


def _relative_error(found: CostStatistics) -> float:
    return math.sqrt(found.variance / found.count) / found.mean
