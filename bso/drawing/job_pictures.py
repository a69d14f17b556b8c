"""The pictures of a job that its trials alone are enough for."""

from __future__ import annotations

from collections.abc import Sequence

from bso.domain.replies import JobDescription, KindDescription
from bso.domain.trial import Trial
from bso.drawing.recurrence_picture import recurrences
from bso.drawing.trial_marks import Link
from bso.drawing.trial_pictures import choices, costs


def job_pictures(
    job: JobDescription, trials: Sequence[Trial], *, kind: KindDescription | None, link: Link | None = None
) -> dict[str, str]:
    """By name: what trials of the current version chose on a hardware kind, what they and their recurrences cost.

    Without a kind, nothing is known yet, and the picture of costs is left out.
    """
    own = [trial for trial in trials if trial.version_number == job.version_number]
    here = own if kind is None else [trial for trial in own if trial.hardware.key == kind.hardware_key]
    best = None if kind is None else kind.best_batch_size
    drawn = {"choices": choices(here, job.spec, best=best, name="choices", link=link)}
    if kind is not None:
        drawn["costs"] = costs(here, kind, job.spec, name="costs", link=link)
    return drawn | {"recurrences": recurrences(here, job.spec, name="recurrences")}
