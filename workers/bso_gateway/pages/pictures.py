"""The pictures of a page: what there is of a job or a trial, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from bso import drawing
from bso.domain.job_spec import JobSpec
from bso.domain.ledger import EARLIER
from bso.domain.replies import KindDescription
from bso.domain.savings import TotalSaved
from bso.domain.trial import Trial
from bso_gateway.pages.contents import JobContents
from bso_gateway.pages.paths import trial_path

_MOST_CURVES = 12


def pictures_of_job(found: JobContents, kind: KindDescription | None) -> dict[str, Markup]:
    """By name: choices, costs and recurrences on a hardware kind, and the metric of the last trials."""
    assert found.job is not None

    def link(trial_number: int) -> str:
        return trial_path(found.job_id, trial_number)

    own = [each for each in found.trials if each.version_number == found.job.version_number]
    drawn = drawing.job_pictures(found.job, own, kind=kind, link=link)
    drawn["curves"] = drawing.curves(_curves(found, own), found.job.spec, name="curves", link=link)
    return {name: Markup(svg) for name, svg in drawn.items()}  # noqa: S704  the drawing functions escape all text


def pictures_of_trial(found: JobContents, trial: Trial) -> dict[str, Markup]:
    """By name: its metric and its cost after each epoch, as far as its reports are among the events."""
    reports = found.reports().get(trial.trial_number, ())
    drawn: dict[str, str] = {}
    if reports and (spec := spec_of(found, trial)) is not None:
        drawn["curves"] = drawing.curves(_curves(found, [trial]), spec, name="curves")
    if reports:
        points = tuple((each.epoch, each.cost) for each in reports)
        drawn["cost"] = drawing.progress_of_cost(points, bound=trial.bound, name="cost")
    return {name: Markup(svg) for name, svg in drawn.items()}  # noqa: S704  the same


def picture_of_savings(months: Mapping[str, TotalSaved]) -> Markup:
    """The energy saved in each month; assumed energy where none was measured."""
    measured = {month: total.energy_j for month, total in months.items() if total.energy_j is not None}
    assumed = {month: total.assumed_energy_j for month, total in months.items() if total.assumed_energy_j is not None}
    drawn = sorted((month, one) for month, one in (measured or assumed).items() if month != EARLIER)
    return Markup(drawing.savings(drawn, name="savings", is_assumed=not measured))  # noqa: S704  as above: escaped


def spec_of(found: JobContents, trial: Trial) -> JobSpec | None:
    """The specification that a trial had; None: an earlier one than what the job has now."""
    is_current = found.job is not None and trial.version_number == found.job.version_number
    return found.job.spec if found.job is not None and is_current else None


def _curves(found: JobContents, trials: Sequence[Trial]) -> list[drawing.Curve]:
    """The metric of the last trials that have reported."""
    reports = found.reports()
    last = [trial for trial in trials if trial.trial_number in reports][-_MOST_CURVES:]
    return [
        drawing.Curve(
            trial_number=trial.trial_number,
            batch_size=trial.batch_size,
            points=tuple((each.epoch, each.metric) for each in reports[trial.trial_number]),
            is_running=trial.is_active,
        )
        for trial in last
    ]
