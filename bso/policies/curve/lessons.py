"""What is learnt from the end of a trial."""

from __future__ import annotations

import math

from bso.domain.events import LateResult, TrialEnded
from bso.domain.trial import DIVERGED, OUT_OF_MEMORY, Outcome, Trial, reason_code
from bso.policies.curve import cost_observations, epoch_observations
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.cost_records import LearntEpochCost
from bso.policies.curve.epoch_records import LearntEpochs
from bso.policies.curve.memory import LearntCurve, Uncounted
from bso.policies.curve.validation import known_approach
from bso.policies.curve.view import View, interval_of

_FAILED = LearntEpochs(ln_epochs=None, variance=None, failed=1.0)
_CENSORED = frozenset({Outcome.NOT_CONVERGED, Outcome.COST_EXCEEDED, Outcome.INTERRUPTED})


def learnt_from(view: View, beliefs: Beliefs, trial: Trial, ended: TrialEnded | LateResult) -> LearntCurve | None:
    """What the end of a trial says; None: nothing."""
    if trial.batch_size not in beliefs.sizes:
        return None
    if not trial.reports:
        return _without_epochs(beliefs, trial, ended)
    epochs = _epochs(view, beliefs, trial, ended)
    is_measured = trial.has_measured_cost(view.spec) and ended.cost > 0.0
    has_cost = is_measured and ended.outcome is not Outcome.CANCELLED
    epoch_cost = _epoch_cost(view, beliefs, trial) if has_cost else None
    return None if epochs is None and epoch_cost is None else LearntCurve(epochs=epochs, epoch_cost=epoch_cost)


def _without_epochs(beliefs: Beliefs, trial: Trial, ended: TrialEnded | LateResult) -> LearntCurve | None:
    """What a run without a report says; one that was taken over from elsewhere may have a result all the same."""
    if _cannot_converge(ended) or (ended.outcome is Outcome.NOT_CONVERGED and ended.cost > 0.0):
        return LearntCurve(epochs=_FAILED, epoch_cost=None)
    if ended.learnt_cost is None:
        return None
    belief = beliefs.of(trial.batch_size)
    uncounted = Uncounted(
        ln_epochs=belief.epochs,
        ln_epoch_cost=math.log(ended.learnt_cost) - belief.epochs,
        variance=None if ended.outcome is Outcome.CONVERGED else belief.noise,
    )
    return LearntCurve(epochs=None, epoch_cost=None, uncounted=uncounted)


def _epoch_cost(view: View, beliefs: Beliefs, trial: Trial) -> LearntEpochCost | None:
    if view.seen is None:
        return None
    ratio = cost_observations.profiling_ratio(trial)
    return cost_observations.learnt_cost(beliefs, view.costs, trial.batch_size, view.seen, profiling_ratio=ratio)


def _epochs(view: View, beliefs: Beliefs, trial: Trial, ended: TrialEnded | LateResult) -> LearntEpochs | None:
    size = trial.batch_size
    record = view.epochs.record(size)
    if ended.outcome is Outcome.CONVERGED:
        approach = known_approach(trial.trial_number, view.epochs.approaches)
        return epoch_observations.converged(beliefs, record, size, trial.epoch, approach)
    if _cannot_converge(ended):
        return _FAILED
    if ended.outcome not in _CENSORED:
        return None
    return epoch_observations.censored(
        beliefs,
        record,
        size,
        trial.epoch,
        interval_of(trial),
        may_have_failed=ended.outcome is not Outcome.INTERRUPTED,
        has_incumbent=view.has_incumbent,
        forecast=view.forecast(trial, beliefs.of(size)),
    )


def _cannot_converge(ended: TrialEnded | LateResult) -> bool:
    """Whether a trial has shown that its batch size does not converge, whatever time it is given."""
    code = reason_code(ended.reason)
    if ended.outcome is Outcome.INFEASIBLE:
        return code != OUT_OF_MEMORY  # what memory excludes is known elsewhere
    return ended.outcome is Outcome.NOT_CONVERGED and code == DIVERGED
