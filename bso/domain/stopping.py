"""When a trial ends: at its target, at its limits, or because it has become too expensive (NSDI '23, section 4.4)."""

from __future__ import annotations

import math

from bso.domain.cost import is_all_profiled
from bso.domain.job import Job
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Stage, reference_of
from bso.domain.policy import Verdict
from bso.domain.progress import Progress
from bso.domain.quantities import joules
from bso.domain.trial import DIVERGED, Outcome, Trial

NONFINITE_METRICS_BEFORE_END = 2
_MOST_DOUBLINGS = 64


def early_stopping_bound(job: Job, trial: Trial) -> float | None:
    """The cost [J] above which a trial is stopped: ``beta * reference``; None: there is none.

    In the MAB stage a batch size that has converged before gets twice that for each abort of its recurrence, so
    that some trial always ends. While nothing has converged the cost budget, if there is one, is the bound. An
    unbounded trial has none in any case, nor has a job that needs attention.
    """
    spec = job.spec_of(trial)
    knowledge = job.knowledge_of(trial)
    if not spec.early_stopping or trial.is_unbounded or knowledge.needs_attention:
        return None
    reference = reference_of(knowledge, spec)
    if reference is None:
        return spec.cost_budget
    if spec.beta_knob is None:
        return None
    bound = spec.beta_knob * reference
    recurrence = job.recurrences.get(trial.recurrence_id)
    if recurrence and knowledge.stage is Stage.MAB and knowledge.arm(trial.batch_size).convergences:
        bound *= 2.0 ** min(recurrence.aborts, _MOST_DOUBLINGS)
    return bound if math.isfinite(bound) else None


def is_over_bound(job: Job, trial: Trial, cost: float) -> bool:
    """Whether a cost [J] is above ``beta * reference``, doublings aside."""
    spec = job.spec_of(trial)
    reference = reference_of(job.knowledge_of(trial), spec)
    return reference is not None and spec.beta_knob is not None and cost > spec.beta_knob * reference


def judge_progress(spec: JobSpec, trial: Progress, bound: float | None) -> Verdict:
    """The verdict on a trial after a report. Reaching the target comes first: a model is a model.

    ``bound`` is the cost [J] above which it is stopped; None: there is none. No cost stops a trial whose every epoch
    was profiled: the next one tells what it costs without that.
    """
    metric = math.nan if trial.metric is None else trial.metric
    if spec.reached_target(metric):
        return Verdict(
            outcome=Outcome.CONVERGED,
            reason=f"the metric {metric:g} reached the target {spec.target_metric:g} after {epochs(trial.epoch)}",
        )
    if trial.nonfinite_metrics_in_a_row >= NONFINITE_METRICS_BEFORE_END:
        times = trial.nonfinite_metrics_in_a_row
        return Verdict(
            outcome=Outcome.NOT_CONVERGED, reason=f"{DIVERGED}: the metric was {metric:g} {times} times in a row"
        )
    if trial.epoch >= spec.max_epochs:
        return Verdict(
            outcome=Outcome.NOT_CONVERGED,
            reason=f"the metric was {metric:g} after {trial.epoch:g} of at most {epochs(spec.max_epochs)}, "
            f"the target is {spec.target_metric:g}",
        )
    if bound is not None and trial.cost > bound and not is_all_profiled(trial.epoch, trial.profiled):
        return Verdict(
            outcome=Outcome.COST_EXCEEDED, reason=f"the cost {joules(trial.cost)} is above the bound {joules(bound)}"
        )
    return Verdict(outcome=None, reason="the target is not reached yet, and the cost is within its bound")


def epochs(count: float) -> str:
    """A number of epochs in words."""
    return f"{count if isinstance(count, int) else f'{count:g}'} {'epoch' if count == 1 else 'epochs'}"
