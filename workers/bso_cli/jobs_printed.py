"""A job, its batch sizes and its trials as tables and sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rich.markup import escape
from rich.text import Text

from bso.domain.hardware import EnergyMethod
from bso.domain.quantities import NOTHING, counted, joules, joules_within, listed, moment, number, percent, seconds
from bso.domain.replies import ActiveTrialDescription, Confidence, JobDescription, KindDescription
from bso.domain.savings import saved_on
from bso.domain.savings_in_words import in_words
from bso.domain.sentences import RIGHTS, described, status_in_words
from bso.domain.tally import LAST, Tally, tallies
from bso.domain.trial import Outcome, Trial, TrialState
from bso_cli.tables import Table, table_of

_COLOURS = {
    Outcome.CONVERGED: "green",
    Outcome.COST_EXCEEDED: "yellow",
    Outcome.NOT_CONVERGED: "yellow",
    Outcome.INFEASIBLE: "red",
    Outcome.INTERRUPTED: "magenta",
    Outcome.CANCELLED: "dim",
}
ENERGY_IS_ASSUMED = "Energy is assumed, not measured: constant power times time. Costs go by time."
ATTENTION = "needs attention"
EXPECTED_NEXT = "expected next"
_MEAN = f"mean cost of last {LAST}"
_WORTH_SAYING = 0.005  # of the cost
_OPTIONAL = ("trials", "converged")


def job_lines(job: JobDescription) -> Iterator[str]:
    """What a job is, in a few lines."""
    owner = f", owner {escape(job.owner)}" if job.owner else ""
    yield f"[bold]{escape(job.job_id)}[/], version {job.version_number}{owner}"
    yield described(job.spec)
    for login, right in sorted(job.grants.items()):
        yield f"login {escape(login)} may {RIGHTS[right]}"
    for version in job.versions:
        if version.version_number != job.version_number:
            yield f"version {version.version_number}: {escape(version.specification)}"
    if job.learning_rate is not None:
        yield f"learning rate {job.learning_rate.describe()}"
    waiting = f"; open: {escape(listed(job.open_recurrences))}" if job.open_recurrences else ""
    yield f"{counted(job.trials, 'trial')} in {counted(job.recurrences, 'recurrence')}{waiting}"
    yield from map(_running, job.active_trials)


def dead_trainings(
    job_id: str, trials: Iterable[Trial | ActiveTrialDescription], without_process: Collection[tuple[str, int]]
) -> Iterator[str]:
    """A sentence for each of a job's trials that is recorded as running, though its process has ended."""
    for trial in trials:
        if trial.state is TrialState.RUNNING and (job_id, trial.trial_number) in without_process:
            yield (
                f"The process of trial {trial.trial_number} of job {job_id} has ended: the next training of the job "
                "suspends the trial, and with a checkpoint it can be resumed"
            )


def target_doubt(job: JobDescription, trials: Iterable[Trial]) -> str | None:
    """What to ask where each training of the version that reached the target did so at once; None: nothing."""
    converged = [trial for trial in trials if trial.outcome is Outcome.CONVERGED]
    found = [trial.is_evaluated_once for trial in converged if trial.version_number == job.version_number]
    if not found or not all(found):
        return None
    which = "The training" if len(found) == 1 else f"All {len(found)} trainings"
    return (
        f"{which} that reached the target did so with the first evaluation: is higher_is_better_metric "
        f"({job.spec.higher_is_better_metric}) right, and the target not too easy?"
    )


def _running(trial: ActiveTrialDescription) -> str:
    return (
        f"trial {trial.trial_number} is {trial.state.value}: batch size {trial.batch_size}, "
        f"epoch {number(trial.epoch)}, cost {joules(trial.cost)}, since {moment(trial.started_at)} UTC"
    )


def kind_table(kind: KindDescription, job: JobDescription, trials: Sequence[Trial] | None) -> Table:
    """The batch sizes on one hardware kind. ``trials`` are those of the job; None: they are not known."""
    size = kind.best_batch_size
    best = "nothing has converged yet" if size is None else f"best batch size so far {size}"
    stage = f", stage {kind.stage}" if kind.stage is not None else ""
    counts = None
    if trials is not None:
        counts = tallies(trials, job.spec, version_number=job.version_number, hardware_key=kind.hardware_key)
    title = f"On {kind.hardware}: policy {job.spec.policy}{stage}, {best}"
    made = costs_table(title, kind, counts, marked=size)
    if kind.needs_attention:
        why = kind.attention or "recurrences in a row ended without a model"  # an older optimizer does not say
        made.notes.insert(0, Text(f"This job {ATTENTION}: {why}.", style="bold yellow"))
    return made


def costs_table(title: str, kind: KindDescription, counts: Mapping[int, Tally] | None, *, marked: int | None) -> Table:
    """The batch sizes on one hardware kind and what each costs; below, why some are not offered.

    ``counts`` None: the trials are not known, and only what the job remembers of them is shown.
    """
    numbers = ("batch size", *(("trials",) if counts is not None else ()), "converged")
    numbers += (_MEAN, EXPECTED_NEXT) if counts is not None else (EXPECTED_NEXT,)
    made = Table(title, "batch size", "status", *numbers[1:], right=numbers, optional=_OPTIONAL, notes=_notes(kind))
    for arm in kind.arms:
        count = None if counts is None else counts.get(arm.batch_size, _NONE)
        made.add_row(
            str(arm.batch_size),
            status_in_words(
                arm.status,
                is_best=arm.batch_size == kind.best_batch_size,
                is_tried=arm.convergences > 0 if count is None else count.ended > 0,
            ),
            *([str(arm.convergences)] if count is None else [str(count.ended), str(count.converged)]),
            *([] if count is None else [joules(count.mean_cost)]),
            joules_within(arm.posterior_mean, arm.posterior_std),
            style="bold green" if arm.batch_size == marked else None,
        )
    return made


def explained(about_costs: str, *, has_means: bool) -> str:
    """What the columns of costs mean; ``about_costs`` is what the policy says of those that it expects."""
    means = f"Mean cost: of the last {LAST} trials that converged. " if has_means else ""
    return f"{means}{expected_in_words(about_costs)}"


def savings(job: JobDescription) -> Iterator[str]:
    """What the current version has saved, a sentence for each hardware kind on which that is known."""
    for kind in job.kinds:
        found = saved_on(job.saved, version_number=job.version_number, hardware_key=kind.hardware_key)
        if found.time_s is not None:
            where = f"On {kind.hardware}: " if len(job.kinds) > 1 else ""
            yield f"[bold]{escape(where)}{in_words(found)}[/]"


def is_energy_assumed(job: JobDescription, trials: Iterable[Trial]) -> bool:
    """Whether any cost of a job is of assumed energy."""
    recorded = any(trial.hardware.energy_method is EnergyMethod.ASSUMED for trial in trials)
    return recorded or any(trial.is_energy_assumed for trial in job.active_trials)


def expected_in_words(about_costs: str) -> str:
    """What the column of expected costs means, which differ from means."""
    return f"Expected next: {about_costs}." if about_costs else ""


_NONE = Tally(ended=0, converged=0, mean_cost=None)


def _sure(found: Confidence) -> str:
    """How sure the best batch size is, and by how much costs vary."""
    if found.may_save is None:
        other = "no other batch size has converged yet"
    elif found.may_save < _WORTH_SAYING:
        other = "no other batch size that has converged is likely to be cheaper"
    else:
        other = f"another batch size that has converged may be up to {percent(found.may_save)} cheaper"
    words = f"Chosen from {counted(found.runs, 'run')}: {other}, and more runs of others "
    words += "pay." if found.more_runs_pay else "would not pay."
    if found.cost_noise is None:
        return words
    return f"{words} What an epoch costs varies by {percent(found.cost_noise, 1)} or so from run to run."


def _notes(kind: KindDescription) -> Iterator[str]:
    if kind.confidence is not None:
        yield _sure(kind.confidence)
    sizes: dict[tuple[str, str], list[int]] = {}
    for arm in kind.arms:
        if arm.note:
            sizes.setdefault((arm.status, arm.note), []).append(arm.batch_size)
    for (status, note), alike in sizes.items():
        yield f"{listed(alike)} {'is' if len(alike) == 1 else 'are'} {status}: {note}"


def trials_tables(trials: Sequence[Trial], *, of: int) -> Iterator[Table]:
    """One line per trial; one table, or one for each hardware kind where there are several."""
    kinds = {trial.hardware.key: trial.hardware for trial in trials}
    which = f"The last {len(trials)} of {of} trials" if len(trials) < of else "Trials"
    for key, hardware in kinds.items():
        where = f": those on {hardware.describe()}" if len(kinds) > 1 else ""
        yield _trials_table(f"{which}{where}", [trial for trial in trials if trial.hardware.key == key])


def _trials_table(title: str, trials: Sequence[Trial]) -> Table:
    shown: dict[str, Sequence[str | Text]] = {
        "trial": [str(trial.trial_number) for trial in trials],
        "version": [str(trial.version_number) for trial in trials],
        "attempt": [str(trial.attempt) for trial in trials],
        "batch size": [str(trial.batch_size) for trial in trials],
        "learning rate": [_rate(trial) for trial in trials],
        "epochs": [NOTHING if _is_uncounted(trial) else number(trial.epoch) for trial in trials],
        "metric": [number(trial.metric, 6) for trial in trials],
        "time": [seconds(trial.time_s) if _has_cost(trial) else NOTHING for trial in trials],
        "energy": [joules(trial.energy_j) if _has_energy(trial) else NOTHING for trial in trials],
        "cost": [joules(trial.cost) if _has_cost(trial) else NOTHING for trial in trials],
        "outcome": [outcome(trial) for trial in trials],
    }
    absent = [
        *(["version"] if len({trial.version_number for trial in trials}) == 1 else []),
        *(["learning rate"] if all(trial.learning_rate is None for trial in trials) else []),
        *(["energy"] if trials[0].hardware.energy_method is EnergyMethod.ASSUMED else []),
    ]
    *numbers, _outcome = shown
    optional = ("learning rate", "attempt", "metric", "energy")
    return table_of(title, shown, right=numbers, optional=optional, absent=absent)


def _has_energy(trial: Trial) -> bool:
    return _has_cost(trial) and trial.is_energy_complete


def _has_cost(trial: Trial) -> bool:
    return trial.reports > 0 or trial.cost > 0.0


def _is_uncounted(trial: Trial) -> bool:
    """Whether nobody counted the epochs of a trial that was recorded elsewhere."""
    return not trial.reports and trial.cost > 0.0


def _rate(trial: Trial) -> str:
    return NOTHING if trial.learning_rate is None else number(trial.learning_rate.at(trial.batch_size))


def outcome(trial: Trial) -> Text:
    """How a trial ended, or that it has not, with its colour."""
    ended = trial.last_outcome
    if ended is None:
        return Text(trial.state.value, style="cyan")
    return Text(ended.value.replace("_", " "), style=_COLOURS[ended])
