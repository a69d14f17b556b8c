"""What stands for a trial in a picture: its mark, its words, its cost, and its line of the legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from bso.domain.job_spec import JobSpec
from bso.domain.quantities import joules
from bso.domain.trial import Outcome, Trial, TrialState
from bso.drawing.frame import Entry
from bso.drawing.looks import BEST, DEFAULT, OUTCOMES, RUNNING, Look
from bso.drawing.svg import Markup, Point, linked, mark, titled

Link = Callable[[int], str]
"""The address of a trial's page, by its number."""

MOST_TRIALS = 150
NONE_YET = ("No trial yet", "the first training of this job appears here")


def last_trials(trials: Iterable[Trial]) -> list[Trial]:
    """The last 150, in the order of their numbers."""
    return sorted(trials, key=lambda trial: trial.trial_number)[-MOST_TRIALS:]


def cost_of(trial: Trial) -> float:
    """What it cost or has cost so far [J]; 0 if that is no positive finite number."""
    return trial.cost if math.isfinite(trial.cost) and trial.cost > 0.0 else 0.0


def outcome_words(outcome: Outcome) -> str:
    """The outcome as people read it."""
    return str(outcome).replace("_", " ")


def trial_words(trial: Trial) -> str:
    """A trial in one line: ``trial 12: batch size 64, converged, 1.30 kJ``."""
    outcome, cost = trial.last_outcome, cost_of(trial)
    state = "suspended" if trial.state is TrialState.SUSPENDED else "running"
    so_far = " so far" if outcome is None else ""
    paid = f", {joules(cost)}{so_far}" if cost else ""
    how = outcome_words(outcome) if outcome else state
    return f"trial {trial.trial_number}: batch size {trial.batch_size}, {how}{paid}"


def trial_mark(trial: Trial, at: Point, *, radius: float, link: Link | None) -> Markup:
    """The mark of a trial by its outcome, with its words, and a link to its page if there is one."""
    words = trial_words(trial)
    drawn = mark(_look_of(trial), at, titled(words), radius=radius)
    return linked(drawn, words, link(trial.trial_number) if link else None)


def legend_of(trials: Sequence[Trial]) -> list[Entry]:
    """The outcomes that these trials have, in the order of `Outcome`, and whether some are active."""
    found = {trial.last_outcome for trial in trials}
    ended = [Entry(look=OUTCOMES[one], words=outcome_words(one)) for one in Outcome if one in found]
    return [*ended, *([Entry(look=RUNNING, words="running")] if None in found else [])]


def legend_of_sizes(spec: JobSpec, best: int | None) -> list[Entry]:
    """What marks the default batch size, and the best one if there is one."""
    default = Entry(look=DEFAULT, words=f"default ({spec.default_batch_size})")
    return [default, *([] if best is None else [Entry(look=BEST, words=f"best now ({best})")])]


def _look_of(trial: Trial) -> Look:
    outcome = trial.last_outcome
    return OUTCOMES[outcome] if outcome else RUNNING
