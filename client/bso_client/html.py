"""What notebooks show of trainings and jobs: a few figures and pictures, as HTML without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from bso.domain.foreign_text import shown
from bso.domain.quantities import joules, joules_within, number, percent, seconds
from bso.domain.replies import JobDescription, KindDescription
from bso.domain.savings import saved_on
from bso.domain.savings_in_words import in_words
from bso.domain.sentences import described, status_in_words
from bso.drawing import Curve, costs, curves, progress_of_cost
from bso_client.training.state import TrainingState


def trial_as_html(state: TrainingState, evaluations: Sequence[tuple[float, float, float]]) -> str:
    """A training as it stands in this process; ``evaluations``: epoch, metric and cost [J] at each of them."""
    name = f"Training of job {state.job_id}" if state.trial_number is None else f"Trial {state.trial_number}"
    limit = "" if state.bound is None else f", stopped above {joules(state.bound)}"
    facts = {
        "Batch size": f"{state.batch_size}: {state.reason}",
        "Outcome" if state.outcome else "State": _state_in_words(state),
        "Metric": f"{number(state.metric)}, target {number(state.spec.target_metric, 12)}",
        "Epochs": f"{number(state.epoch)} of {state.spec.max_epochs} at most",
        "Cost": f"{joules(state.cost)}{limit}",
        "Time": seconds(state.time_s),
    }
    pictures: list[str] = []
    if evaluations:
        points = tuple((epoch, metric) for epoch, metric, _ in evaluations)
        curve = Curve(
            trial_number=state.trial_number or 0,
            batch_size=state.batch_size,
            points=points,
            is_running=not state.has_ended,
        )
        spent = tuple((epoch, cost) for epoch, _, cost in evaluations)
        pictures = [
            curves([curve], state.spec, name="bso-curves"),
            progress_of_cost(spent, bound=state.bound, name="bso-cost"),
        ]
    return _page(f"{name} of job {state.job_id}" if state.trial_number else name, facts.items(), pictures)


def job_as_html(job: JobDescription) -> str:
    """A job as the optimizer knows it."""
    facts = [
        ("Version", f"{job.version_number}, {described(job.spec)}, policy {job.spec.policy}"),
        ("Trials", f"{job.trials} in {job.recurrences} recurrences"),
    ]
    for kind in job.kinds:
        facts += [(f"On {kind.hardware}", _known(job, kind))]
        found = saved_on(job.saved, version_number=job.version_number, hardware_key=kind.hardware_key)
        if found.time_s is not None:
            facts += [("Saved", in_words(found))]
    pictures = [
        costs((), kind, job.spec, name=f"bso-costs-{place}") for place, kind in enumerate(job.kinds) if _has_costs(kind)
    ]
    return _page(f"Job {job.job_id}", facts, pictures) + "".join(_arms(kind) for kind in job.kinds)


def _state_in_words(state: TrainingState) -> str:
    if state.outcome is not None:
        reason = f" ({state.outcome_reason})" if state.outcome_reason else ""
        return f"{state.outcome.value.replace('_', ' ')}{reason}"
    return "running" if state.has_started else "not begun"


def _known(job: JobDescription, kind: KindDescription) -> str:
    best = "nothing has converged yet" if kind.best_batch_size is None else f"best batch size {kind.best_batch_size}"
    sure = kind.confidence
    more = "" if sure is None or sure.may_save is None else f", another may save {percent(sure.may_save)} at most"
    return f"{best} (default {job.spec.default_batch_size}){more}"


def _has_costs(kind: KindDescription) -> bool:
    return any(arm.posterior_mean is not None for arm in kind.arms)


def _arms(kind: KindDescription) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("batch size", "status", "converged", "expected cost"))
    rows = "".join(
        f"<tr><th>{arm.batch_size}</th><td>{_text(status)}</td><td>{arm.convergences}</td>"
        f"<td>{_text(joules_within(arm.posterior_mean, arm.posterior_std))}</td></tr>"
        for arm in kind.arms
        for status in [
            status_in_words(arm.status, is_best=arm.batch_size == kind.best_batch_size, is_tried=arm.convergences > 0)
        ]
    )
    return (
        f"<table><caption>{_text(kind.hardware)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _page(title: str, facts: Iterable[tuple[str, str]], pictures: Sequence[str]) -> str:
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in facts)
    return f"<table><caption>{_text(title)}</caption><tbody>{rows}</tbody></table>{''.join(pictures)}"


def _text(words: str) -> str:
    return escape(shown(words))
