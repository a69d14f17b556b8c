"""Jobs, arms and trials as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bso.cli.sentences import described
from bso.cli.terminal import NOTHING, counted, joules, listed, moment, number, seconds, table
from bso.domain.hardware import EnergyMethod
from bso.domain.job_spec import PRUNING_THOMPSON
from bso.domain.replies import ArmDescription, JobDescription, KindDescription
from bso.domain.trial import Outcome, Trial
from bso.service.records import JobSummary

_COLOURS = {
    Outcome.CONVERGED: "green",
    Outcome.COST_EXCEEDED: "yellow",
    Outcome.NOT_CONVERGED: "yellow",
    Outcome.INFEASIBLE: "red",
    Outcome.INTERRUPTED: "magenta",
    Outcome.CANCELLED: "dim",
}


def summary_fields(job: JobSummary) -> dict[str, Any]:
    """A job as a JSON object, its specification unpacked."""
    spec = _spec_fields(job)
    return {
        "job_id": job.job_id,
        "version_number": job.version_number,
        "version": job.version,
        "policy": job.policy,
        "owner": job.owner,
        "is_deleted": job.is_deleted,
        "trials": job.last_trial_number,
        "spec": spec,
        "created_at": job.created_at,
        "changed_at": job.changed_at,
    }


def jobs_table(jobs: Sequence[JobSummary], *, width: int) -> Table:
    """One line per job; the job_id is never wrapped, so a narrow screen shows neither owner nor last change."""
    rows = [_job_cells(job) for job in jobs]
    columns = _JOB_COLUMNS if width >= ROOMY else _JOB_COLUMNS[:-2]
    made = table("Jobs", *columns, right=("default", "target", "trials"), flexible=("batch sizes", "owner"))
    made.columns[0].min_width = min(max(Text.from_markup(row[0]).cell_len for row in rows), width) if rows else None
    for row in rows:
        made.add_row(*row[: len(columns)])
    return made


ROOMY = 110
_JOB_COLUMNS = ("job", "batch sizes", "default", "target", "trials", "owner", "last change (UTC)")


def _job_cells(job: JobSummary) -> tuple[str, ...]:
    spec = _spec_fields(job)
    return (
        f"[dim]{escape(job.job_id)} (deleted)[/]" if job.is_deleted else escape(job.job_id),
        _sizes(spec.get("batch_sizes", ())),
        str(spec.get("default_batch_size", NOTHING)),
        number(spec.get("target_metric")),
        str(job.last_trial_number),
        escape(job.owner or NOTHING),
        moment(job.changed_at),
    )


def job_panel(job: JobDescription) -> RenderableType:
    """What a job is, in a few lines."""
    head = f"[bold]{escape(job.job_id)}[/], version {job.version_number}" + (
        f", owner {job.owner}" if job.owner else ""
    )
    ran = f"{counted(job.trials, 'trial')} in {counted(job.recurrences, 'recurrence')}"
    waiting = f"; open: {listed(job.open_recurrences)}" if job.open_recurrences else ""
    running = [
        f"trial {trial.trial_number} is {trial.state.value}: batch size {trial.batch_size}, "
        f"epoch {number(trial.epoch)}, cost {joules(trial.cost)}"
        f"{' (energy assumed)' if trial.is_energy_assumed else ''}, since {moment(trial.started_at)} UTC"
        for trial in job.active_trials
    ]
    rate = [f"learning rate {job.learning_rate.describe()}"] if job.learning_rate is not None else []
    return Group(head, described(job.spec), *rate, ran + waiting, *running)


def arms_table(kind: KindDescription, policy: str) -> RenderableType:
    """The batch sizes on one hardware kind, with what is believed of their costs; below, why some are not offered."""
    best = f"best so far {kind.best_batch_size}" if kind.best_batch_size is not None else "nothing has converged yet"
    stage = f", stage {kind.stage.value}" if policy == PRUNING_THOMPSON else ""
    title = f"On {kind.hardware}: {policy}{stage}, {best}"
    made = table(title, *_ARM_COLUMNS, right=("batch size", "costs", "converged", "mean cost", "posterior"))
    for arm in kind.arms:
        style = "bold green" if arm.batch_size == kind.best_batch_size else None
        made.add_row(*arm_cells(arm), style=style)
    warning = ["[bold yellow]This job needs attention: nothing converged for three rounds.[/]"]
    return Group(made, *_notes(kind), *(warning if kind.needs_attention else []))


def _notes(kind: KindDescription) -> Iterator[str]:
    sizes: dict[tuple[str, str], list[int]] = {}
    for arm in kind.arms:
        if arm.note:
            sizes.setdefault((arm.status, arm.note), []).append(arm.batch_size)
    for (status, note), alike in sizes.items():
        yield escape(f"{listed(alike)} {'is' if len(alike) == 1 else 'are'} {status}: {note}")


_ARM_COLUMNS = ("batch size", "status", "costs", "converged", "mean cost", "posterior")


def arm_cells(arm: ArmDescription) -> tuple[str, ...]:
    """What is known of a batch size, in the order of the columns of ``arms_table``."""
    return (
        str(arm.batch_size),
        arm.status,
        str(arm.trials_with_cost),
        str(arm.convergences),
        joules(arm.mean_cost),
        _posterior(arm),
    )


def _posterior(arm: ArmDescription) -> str:
    """The belief about the mean cost of a batch size, as mean ± standard deviation."""
    if arm.posterior_mean is None or arm.posterior_std is None:
        return NOTHING
    return f"{joules(arm.posterior_mean)} ± {joules(arm.posterior_std)}"


def trials_table(trials: Sequence[Trial], *, of: int, width: int) -> Table:
    """One line per trial; a narrow screen shows no learning rates."""
    title = f"Trials (the last {len(trials)} of {of})" if len(trials) < of else "Trials"
    has_rates = width >= ROOMY and any(trial.learning_rate is not None for trial in trials)
    rate = ("learning\nrate",) if has_rates else ()
    numbers = ("trial", "at-\ntempt", "batch\nsize", *rate, "epochs", "metric", "time", "energy", "cost")
    is_assumed = any(_is_assumed(trial) for trial in trials)
    caption = "(in brackets) energy is assumed, not measured" if is_assumed else None
    made = table(title, *numbers, "outcome", right=numbers, flexible=("outcome",), caption=caption)
    for trial in trials:
        made.add_row(
            str(trial.trial_number),
            str(trial.attempt),
            str(trial.batch_size),
            *([_rate(trial)] if has_rates else []),
            number(trial.epoch),
            number(trial.metric),
            seconds(trial.time_s),
            _bracketed(trial, trial.energy_j) if trial.is_energy_complete else NOTHING,
            _bracketed(trial, trial.cost),
            outcome(trial),
        )
    return made


def _bracketed(trial: Trial, value: float | None) -> str:
    """An energy or a cost, in brackets where energy was assumed."""
    return f"({joules(value)})" if _is_assumed(trial) and value is not None else joules(value)


def _is_assumed(trial: Trial) -> bool:
    return trial.hardware.energy_method is EnergyMethod.ASSUMED


def _rate(trial: Trial) -> str:
    return NOTHING if trial.learning_rate is None else number(trial.learning_rate.at(trial.batch_size))


def outcome(trial: Trial) -> str:
    """How a trial ended, or that it has not, with its colour."""
    ended = trial.late_outcome or trial.outcome
    if ended is None:
        return f"[cyan]{trial.state.value}[/]"
    return f"[{_COLOURS[ended]}]{ended.value.replace('_', ' ')}[/]"


def _spec_fields(job: JobSummary) -> dict[str, Any]:
    import json

    found = json.loads(job.spec)
    return found if isinstance(found, dict) else {}


def _sizes(sizes: Sequence[int]) -> str:
    return listed(sizes) if len(sizes) <= 6 else f"{sizes[0]} … {sizes[-1]} ({len(sizes)})"
