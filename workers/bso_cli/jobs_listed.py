"""All jobs at a glance: one line each, from what is stored of a job and its last trial."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from bso.domain.quantities import NOTHING, counted, moment, number, percent, seconds
from bso.domain.savings_in_words import energy_in_words
from bso_cli import jobs_printed as printed
from bso_cli.jobs_printed import outcome
from bso_cli.tables import Table, table_of

if TYPE_CHECKING:
    from bso.domain.trial import Trial
    from bso.service.listed_jobs import ListedJob
    from bso.service.records import ParkedJob

_BY_OPERATORS = "an operator can look into it (`bso doctor`)"
_NUMBERS = ("version", "best batch size", "default", "saves", "saved", "trials", "recurrences", "took", "target")
_OPTIONAL = ("target", "owner", "default", "ended (UTC)", "saved", "saves")


def trouble_of(parked: ParkedJob, *, has_database: bool = True) -> str:
    """A sentence about a job in trouble; ``has_database``: the reader can repair it."""
    beginning = (
        f"job {parked.job_id} is in trouble since {moment(parked.parked_at)[:16]} UTC, and its commands wait: "
        f"{parked.reason}."
    )
    if not has_database:
        return f"{beginning} It is tried again by itself; {_BY_OPERATORS}"
    return f"{beginning} {_remedy(parked.job_id)}"


def unreadable(job_id: str, why: str, *, has_database: bool = True) -> str:
    """A sentence about a job that cannot be read; ``has_database``: the reader can repair it."""
    return f"job {job_id} cannot be read: {why}. {_remedy(job_id) if has_database else _BY_OPERATORS.capitalize()}"


def _remedy(job_id: str) -> str:
    return (
        f"`bso replay verify {job_id}` says whether what is stored of it is damaged, and `bso replay rebuild {job_id}` "
        "repairs it"
    )


def dead_trainings(jobs: Sequence[ListedJob], without_process: Collection[tuple[str, int]]) -> Iterator[str]:
    """A sentence for each job whose last trial is recorded as running, though its process has ended."""
    for job in jobs:
        last = [job.overview.last_trial] if job.overview.last_trial is not None else []
        yield from printed.dead_trainings(job.overview.summary.job_id, last, without_process)


def fields_of(job: ListedJob) -> dict[str, Any]:
    """A job as a JSON object, its specification unpacked."""
    summary, last = job.overview.summary, job.overview.last_trial
    kinds = job.description.kinds if job.description is not None else ()
    return {
        "job_id": summary.job_id,
        "version_number": summary.version_number,
        "version": summary.version,
        "policy": summary.policy,
        "owner": summary.owner,
        "is_deleted": summary.is_deleted,
        "trials": summary.last_trial_number,
        "recurrences": None if job.description is None else job.description.recurrences,
        "kinds": [
            {
                "hardware": kind.hardware,
                "hardware_key": kind.hardware_key,
                "best_batch_size": kind.best_batch_size,
                "needs_attention": kind.needs_attention,
                "attention": kind.attention,
            }
            for kind in kinds
        ],
        "expected_saving": job.expected_saving,
        "saved": job.total_saved,
        "last_trial": last,
        "parked": job.parked,
        "spec": _spec(job),
        "created_at": summary.created_at,
        "changed_at": summary.changed_at,
    }


def jobs_table(jobs: Sequence[ListedJob]) -> Table:
    """One line per job. It saves: a training with the best batch size, as expected; saved: the energy of all so far."""
    columns: dict[str, Sequence[str | Text]] = {
        "job": [_name(job) for job in jobs],
        "version": [str(job.overview.summary.version_number) for job in jobs],
        "best batch size": [_best(job) for job in jobs],
        "default": [str(_spec(job).get("default_batch_size", NOTHING)) for job in jobs],
        "saves": [percent(job.expected_saving) for job in jobs],
        "saved": [_saved(job) for job in jobs],
        "trials": [str(job.overview.summary.last_trial_number) for job in jobs],
        "recurrences": [NOTHING if job.description is None else str(job.description.recurrences) for job in jobs],
        "last training": [_of_last(job, outcome) for job in jobs],
        "took": [_of_last(job, _took) for job in jobs],
        "ended (UTC)": [_of_last(job, lambda trial: moment(trial.ended_at)[:16]) for job in jobs],
        "hardware": [_hardware(job) for job in jobs],
        "target": [number(_spec(job).get("target_metric"), 12) for job in jobs],
        "owner": [job.overview.summary.owner or NOTHING for job in jobs],
        "attention": [Text(job.attention, style="bold yellow") for job in jobs],
    }
    absent = [name for name in ("attention", "owner") if not {*map(str, columns[name])} - {"", NOTHING}]
    return table_of("", columns, right=_NUMBERS, optional=_OPTIONAL, absent=absent)


def _name(job: ListedJob) -> str | Text:
    name = job.overview.summary.job_id
    return Text(f"{name} (deleted)", style="dim") if job.overview.summary.is_deleted else name


def _best(job: ListedJob) -> str:
    """The best batch size on the hardware of the last trial."""
    return NOTHING if job.kind is None or job.kind.best_batch_size is None else str(job.kind.best_batch_size)


def _saved(job: ListedJob) -> str:
    """The energy that it saved; a tilde stands before assumed energy."""
    total = job.total_saved
    if total.energy_j is None and total.assumed_energy_j is not None:
        return f"~ {energy_in_words(total.assumed_energy_j)}"
    return energy_in_words(total.energy_j)


def _of_last(job: ListedJob, say: Callable[[Trial], str | Text]) -> str | Text:
    return NOTHING if job.overview.last_trial is None else say(job.overview.last_trial)


def _took(trial: Trial) -> str:
    """The time of a trial until its last report."""
    if not trial.reports:
        return NOTHING
    return seconds(trial.time_s) if trial.outcome is not None else f"{seconds(trial.time_s)} so far"


def _hardware(job: ListedJob) -> str:
    """That of the last trial, and how many other kinds the current version has run on."""
    last = job.overview.last_trial
    if last is None:
        return NOTHING
    keys = {kind.hardware_key for kind in job.description.kinds} if job.description is not None else set[str]()
    others = len(keys - {last.hardware.key})
    more = f" and {counted(others, 'other kind')}" if others else ""
    return f"{last.hardware.number_of_gpus} x {last.hardware.gpu_model}{more}"


def _spec(job: ListedJob) -> dict[str, Any]:
    found = json.loads(job.overview.summary.spec)
    return found if isinstance(found, dict) else {}
