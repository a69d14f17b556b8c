"""Beginning a trial: which recurrence it serves and which batch size it runs."""

from __future__ import annotations

from bso.domain.attention import attention_in_words, choose_with_attention
from bso.domain.commands import BeginTrial
from bso.domain.decide.contract import (
    Context,
    Decision,
    Facts,
    bound_of,
    policy_of,
    refused_for,
    unchanged,
    with_lease,
)
from bso.domain.decide.growth import outgrown
from bso.domain.decide.trial_end import TrialEnd, end_trial
from bso.domain.events import Event, RecurrenceEnded, RecurrenceOpened, TrialStarted
from bso.domain.evolve import apply
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind, hardware_problems
from bso.domain.identifiers import identifier_problem, trial_id_for
from bso.domain.job import Job, Recurrence
from bso.domain.job_spec import MAX_BATCH_SIZE
from bso.domain.knowledge import Knowledge
from bso.domain.learning_rate import learning_rate_problems
from bso.domain.policies import BadPolicy
from bso.domain.policy import Choice
from bso.domain.quotas import over_quota
from bso.domain.replies import Problem, TrialBegun
from bso.domain.trial import LEASE_LAPSED, SHORTEST_SILENCE_S, Outcome, Trial, TrialState

MAX_OPEN_RECURRENCES = 128
"""Recurrences that nobody finishes do not pile up: beyond this number the oldest idle one is closed."""
MAX_ACTIVE_TRIALS = 256
"""Trainings that are killed again and again do not pile up: beyond this number the oldest suspended ones are ended."""

_UNTIL_ONE_ENDS_S = 10.0


def begin_trial(job: Job, command: BeginTrial, facts: Facts, context: Context) -> Decision:
    """Open or join a recurrence, choose a batch size, and start the trial under a lease."""
    problems = _problems(command)
    if problems:
        return refused_for(job, "invalid_trial", "The trial cannot begin like this", problems)
    if (problem := _one_kind_too_many(job, command.hardware)) is not None:
        return unchanged(job, problem)
    job_now, replaced = _end_replaced(job, command, context)
    job_now, given_up = _end_oldest_suspended(job_now, context)
    recurrence_id = _recurrence_id(job_now, command)
    if (problem := _one_recurrence_too_many(job_now, recurrence_id, context)) is not None:
        return unchanged(job, problem)
    opened = _open_recurrence(job_now, recurrence_id)
    job_now = apply(job_now, opened)
    recurrence = job_now.recurrences[recurrence_id]
    choice = _choice(job_now, recurrence, command)
    is_last = _is_last_attempt(job_now, recurrence, command.hardware)
    choice = replace(choice, is_unbounded=choice.is_unbounded or is_last)
    started = _start(job_now, recurrence, choice, command, context)
    job_now = apply(job_now, [started])
    trial = job_now.trials[started.trial_number]
    job_now = with_lease(job_now, trial.trial_number, context.lease_ends(trial))
    events = (*replaced, *given_up, *opened, started)
    return Decision(job=job_now, events=events, reply=_begun(job, job_now, started, facts, context))


def _problems(command: BeginTrial) -> dict[str, str]:
    problems = hardware_problems(command.hardware)
    if command.recurrence_id is not None and (problem := identifier_problem(command.recurrence_id)):
        problems["recurrence_id"] = problem
    if command.batch_size is not None and not 1 <= command.batch_size <= MAX_BATCH_SIZE:
        problems["batch_size"] = f"must be from 1 to {MAX_BATCH_SIZE}, got {command.batch_size}"
    if command.learning_rate is not None:
        problems |= learning_rate_problems(command.learning_rate)
    return problems


def _one_kind_too_many(job: Job, hardware: HardwareKind) -> Problem | None:
    """Why no trial may run on a hardware kind that is new to the version; None: one may, or it is not new."""
    known = job.version.knowledge
    if hardware.key in known or not known:  # a version counts as one before its first trial, too
        return None
    detail = outgrown(job, added=1)
    if detail is None:
        return None
    return Problem(
        type="too_many_hardware_kinds",
        title="The job has run on too many hardware kinds",
        detail=f"{hardware.describe()[:200]} is new to the job: {detail}",
    )


def _end_replaced(job: Job, command: BeginTrial, context: Context) -> tuple[Job, tuple[Event, ...]]:
    """Cancel the trial that the given-up request started after all, if it did."""
    if command.replaces is None:
        return job, ()
    trial_id = trial_id_for(command.replaces)
    for trial in job.active_trials():
        if trial.trial_id == trial_id:
            reason = "replaced: its client had gone on with a batch size of its own"
            return end_trial(job, trial, TrialEnd.of(trial, Outcome.CANCELLED, reason), context.now)
    return job, ()


def _end_oldest_suspended(job: Job, context: Context) -> tuple[Job, tuple[Event, ...]]:
    """Give up the oldest suspended trials, if too many are active; a result of theirs may still come late."""
    active = job.active_trials()
    suspended = [trial for trial in active if not _is_running(trial)]
    reason = f"{LEASE_LAPSED}: {len(active)} trials are active and this is among the oldest that are suspended"
    events: tuple[Event, ...] = ()
    for trial in suspended[: max(0, len(active) + 1 - MAX_ACTIVE_TRIALS)]:
        job, ended = end_trial(job, trial, TrialEnd.of(trial, Outcome.INTERRUPTED, reason), context.now)
        events += ended
    return job, events


def _joinable(job: Job) -> Recurrence | None:
    """The oldest open recurrence without a running trial."""
    busy = {trial.recurrence_id for trial in job.active_trials() if trial.state is TrialState.RUNNING}
    idle = [recurrence for name, recurrence in job.recurrences.items() if name not in busy]
    return min(idle, key=lambda recurrence: recurrence.recurrence_number, default=None)


def _recurrence_id(job: Job, command: BeginTrial) -> str:
    if command.recurrence_id is not None:
        return command.recurrence_id
    joined = _joinable(job)
    return _new_name(job) if joined is None else joined.recurrence_id


def _new_name(job: Job) -> str:
    """A name that no open recurrence has; a user may have given the plain ones away."""
    name = f"recurrence-{job.last_recurrence_number + 1}"
    while name in job.recurrences:
        name += "+"
    return name


def _one_recurrence_too_many(job: Job, recurrence_id: str, context: Context) -> Problem | None:
    """Why no trial of another recurrence may run beside those that run already; None: one may."""
    most = context.rules.quota_of(context.user).open_recurrences
    if most is None:
        return None
    running = {trial.recurrence_id for trial in job.active_trials() if _is_running(trial)} & job.recurrences.keys()
    if recurrence_id in running or len(running) < most:
        return None
    detail = f"trials of {len(running)} recurrences of job {job.job_id} are running, and login {context.user} may begin"
    return over_quota(
        "open_recurrences", f"{detail} one only while fewer than {most} are", retry_after_s=_UNTIL_ONE_ENDS_S
    )


def _open_recurrence(job: Job, recurrence_id: str) -> tuple[Event, ...]:
    if recurrence_id in job.recurrences:
        return ()
    number = job.last_recurrence_number + 1
    return (*_close_oldest_idle(job), RecurrenceOpened(recurrence_id=recurrence_id, recurrence_number=number))


def _close_oldest_idle(job: Job) -> tuple[Event, ...]:
    """Close the oldest recurrence without a running trial, if there are too many; those with a suspended one last."""
    states = {trial.recurrence_id: trial.state for trial in sorted(job.active_trials(), key=_is_running)}
    idle = [open_ for name, open_ in job.recurrences.items() if states.get(name) is not TrialState.RUNNING]
    if len(job.recurrences) < MAX_OPEN_RECURRENCES or not idle:
        return ()
    oldest = min(idle, key=lambda recurrence: (recurrence.recurrence_id in states, recurrence.recurrence_number))
    reason = f"abandoned: {len(job.recurrences)} recurrences are open and this is the oldest that nothing runs for"
    return (RecurrenceEnded(recurrence_id=oldest.recurrence_id, has_model=False, trial_number=None, reason=reason),)


def _is_running(trial: Trial) -> bool:
    return trial.state is TrialState.RUNNING


def _is_last_attempt(job: Job, recurrence: Recurrence, hardware: HardwareKind) -> bool:
    """Whether no attempt follows the next trial, which then has no bound on its cost.

    While a job needs attention each recurrence has one attempt.
    """
    return recurrence.is_on_last_attempt(job.spec) or job.version.knowledge_on(hardware).needs_attention


def _choice(job: Job, recurrence: Recurrence, command: BeginTrial) -> Choice:
    if command.batch_size is not None:
        reason = "chosen by the client itself while the optimizer was out of reach"
        return Choice(batch_size=command.batch_size, reason=reason)
    if job.version.knowledge_on(command.hardware).needs_attention:
        return choose_with_attention(job.version, recurrence, command.hardware)
    choice = policy_of(job).choose(job, recurrence, command.hardware)
    if type(choice.batch_size) is not int or choice.batch_size not in job.spec.batch_sizes:
        of_job = ", ".join(map(str, job.spec.batch_sizes))
        raise BadPolicy(
            f"policy {job.spec.policy} chose batch size {choice.batch_size!r}: choose has to return one of the job's, "
            f"{of_job}"
        )
    return choice


def _start(job: Job, recurrence: Recurrence, choice: Choice, command: BeginTrial, context: Context) -> TrialStarted:
    started = TrialStarted(
        trial_number=job.last_trial_number + 1,
        trial_id=trial_id_for(context.command_id),
        version_number=job.current_version,
        recurrence_id=recurrence.recurrence_id,
        attempt=recurrence.aborts + 1,
        batch_size=choice.batch_size,
        hardware=command.hardware,
        reason=choice.reason,
        is_unbounded=choice.is_unbounded,
        bound=None,
        started_at=context.now,
        learning_rate=command.learning_rate,
        mark=choice.mark,
        silence_s=None if command.renews_lease else SHORTEST_SILENCE_S,
    )
    return replace(started, bound=bound_of(job, started.trial))


def _begun(before: Job, job: Job, started: TrialStarted, facts: Facts, context: Context) -> TrialBegun:
    trial, size = job.trials[started.trial_number], started.batch_size
    knowledge = job.knowledge_of(trial)
    has_converged = knowledge.arm(size).convergences > 0  # and had a whole run to measure power limits of its own
    return TrialBegun(
        trial_number=started.trial_number,
        trial_id=started.trial_id,
        recurrence_id=started.recurrence_id,
        attempt=started.attempt,
        batch_size=size,
        reason=started.reason,
        is_last_attempt=_is_last_attempt(job, job.recurrences[started.recurrence_id], started.hardware),
        bound=started.bound,
        lease_s=context.rules.lease_of(trial),
        spec=job.spec,
        warnings=_warnings(before, knowledge, started),
        power_profile=facts.power_profile(size, started.hardware),
        nearest_power_profile=None if has_converged else facts.nearest_power_profile(size, started.hardware),
        to_probe=_to_probe(job, trial) if job.spec.probing_budget else (),
    )


def _to_probe(job: Job, trial: Trial) -> tuple[int, ...]:
    return policy_of(job).to_probe(job.version, job.knowledge_of(trial), trial.batch_size)


def _warnings(before: Job, knowledge: Knowledge, started: TrialStarted) -> tuple[str, ...]:
    """What the user should know at the beginning of a trial; ``before``: the job as it was."""
    warnings: tuple[str, ...] = ()
    if knowledge.needs_attention:
        why = attention_in_words(before.spec, knowledge)
        this = f"Batch size {started.batch_size} runs without early stopping; if it misses the target, no other follows"
        warnings = (f"job {before.job_id} needs attention: {why}. {this}",)
    known, now = before.version.learning_rate, started.learning_rate
    if known is None or now is None or now == known:
        return warnings
    rate = (
        f"the learning rate is {now.describe()}; the last trial of version {before.current_version} of job "
        f"{before.job_id} had {known.describe()}, and costs under different rates are not comparable: "
        "give the job another `version`, or go back to the old rate"
    )
    return (*warnings, rate)
