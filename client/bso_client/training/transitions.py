"""What can happen to a training. Each function takes the state and what happened, and returns the next step.

The training judges itself, by the rules of the domain, only where nobody answers. Nothing here waits, sends, measures
or writes: the driver does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsFloat

from bso.domain.commands import (
    BeginTrial,
    Command,
    FinishTrial,
    PowerMeasurement,
    RegisterJob,
    ReportEpoch,
    ReportEpochCosts,
    ReportPowerProfile,
)
from bso.domain.foreign_text import shown
from bso.domain.progress import (
    MOST_REPORTED,
    as_meant,
    epochs,
    judge_progress,
    metric_and_target,
    progressed,
    reported_cost,
)
from bso.domain.quantities import NOTHING, percent, seconds
from bso.domain.replies import EpochJudged, LeaseRenewed, Problem, Registered, Reply, TrialBegun, TrialFinished
from bso.domain.trial import OUT_OF_MEMORY, EpochReport, Outcome, reason_code
from bso_client.errors import InvalidReport, WrongOrder
from bso_client.training.start import registered
from bso_client.training.state import Consumption, Message, Notice, Phase, Probed, Step, TrainingState

_REFUSES_ONE_REPORT = ("invalid_report", "conflicting_report", "report_goes_backwards", "not_taken")
"""Refusals of one report; any other one refuses the trial."""
_REFUSED: Mapping[type[Command], tuple[str, str]] = {
    ReportEpoch: ("{}: a report was refused", "report_refused"),
    FinishTrial: ("{}: its end was refused", "finish_refused"),
    ReportPowerProfile: ("{}: its power profile was refused", "power_profile_refused"),
    ReportEpochCosts: ("{}: its probed epoch costs were refused", "epoch_costs_refused"),
    BeginTrial: ("the trial could not be registered", "optimizer_warning"),
    RegisterJob: ("the job could not be registered", "optimizer_warning"),
}
"""What is refused, in words, and the action word of the log record."""


def started(state: TrainingState) -> TrainingState:
    """Its training begins. Raises WrongOrder for a second time."""
    if state.has_started:
        raise WrongOrder(f"{state.name} was begun already: each trial trains once")
    return replace(state, has_started=True, phase=Phase.ENDED if state.has_ended else Phase.TRAINING)


def checked_evaluation(
    state: TrainingState,
    metric: SupportsFloat,
    *,
    epoch: float | None,
    samples: float | None,
    samples_per_epoch: float | None,
) -> tuple[float, float]:
    """The metric as a number, and the progress in epochs. Raises WrongOrder, InvalidReport."""
    if not state.has_started:
        raise WrongOrder(
            f"on_evaluate came before the training of {state.name} began: put the training inside "
            "`with trial:`, or call on_train_begin() first"
        )
    number = as_meant(_metric_of(metric), target=state.spec.target_metric)
    return number, _epoch_of(state.epoch, epoch, samples, samples_per_epoch)


def reported(state: TrainingState, report: EpochReport) -> Step:
    """It has evaluated its model; ``report`` holds its own totals since this process began, or since its checkpoint.

    A model overrules a stop that is not acknowledged yet: its report is then recorded, and the training judges itself.
    """
    if state.has_ended:
        if state.phase is not Phase.STOPPED or not state.spec.reached_target(report.metric):
            return _evaluated_after_the_end(state, report.metric)
        state = replace(state, phase=Phase.TRAINING, outcome=None, outcome_reason="", should_retry=False)
        return replace(_reported(state, report, is_overruling=True), is_awaited=False)
    return _reported(state, report, is_overruling=False)


def received(state: TrainingState, command: Command, reply: Reply) -> Step:
    """The reply to one of its commands has come, in time or late. After an end it changes the bound, and no outcome."""
    match reply:
        case Registered():
            return Step(state=state, notices=_warnings(state, reply.warnings))
        case TrialBegun():
            return Step(state=registered(state, reply), notices=_warnings(state, reply.warnings))
        case EpochJudged():
            return _judged(state, reply)
        case TrialFinished():
            known = replace(state, should_retry=reply.should_retry, cost=reply.cost)
            return Step(state=known, notices=_warnings(state, reply.warnings))
        case LeaseRenewed():
            return Step(state=replace(state, bound=reply.bound, lease_s=reply.lease_s))
        case Problem():
            return _refused(state, command, reply)
        case _:
            return Step(state=state)


def unanswered(state: TrainingState) -> Step:
    """Nobody has judged its last report: it judges itself, by target, limits and the last bound."""
    if state.has_ended:
        return Step(state=state)
    verdict = judge_progress(state.spec, state, state.bound)
    if verdict.outcome is None:
        return Step(state=state)
    ended = _with_outcome(state, verdict.outcome, verdict.reason, should_retry=state.may_retry_alone(verdict.outcome))
    finish = _finish(ended, None)
    return Step(state=ended, sends=(Message(command=finish.late, late=finish.late),))


def acknowledged(state: TrainingState) -> Step:
    """It acknowledges a stop, once: the optimizer may unlearn one that is not acknowledged."""
    if state.phase is not Phase.STOPPED:
        return Step(state=state)
    state = replace(state, phase=Phase.ENDED)
    return Step(state=state, sends=(_finish(state, None),))


def ended(state: TrainingState, outcome: Outcome, reason: str, *, consumed: Consumption) -> Step:
    """It ends by its own account: left, called off, or interrupted. One that has ended before acknowledges that."""
    if state.has_ended:
        return acknowledged(state)
    state = _with_outcome(state, outcome, reason, should_retry=state.may_retry_alone(outcome))
    return Step(state=state, sends=(_finish(state, _totals(state, consumed)),), is_awaited=True)


def end_of_unstarted(state: TrainingState, reason: str = "") -> tuple[Outcome, str]:
    """How a trial ends that trained nothing here: it says nothing of its batch size. One from a checkpoint waits on."""
    why = f"its training was never begun{f': {reason}' if reason else ''}"
    return Outcome.INTERRUPTED if state.is_resumable else Outcome.CANCELLED, why


def profiled(state: TrainingState, measurements: Sequence[PowerMeasurement]) -> Step:
    """What was measured under several power limits, for the next trial with this batch size."""
    state = replace(state, power_profile=tuple(measurements), nearest_power_profile=None)
    command = ReportPowerProfile(batch_size=state.batch_size, hardware=state.hardware, measurements=state.power_profile)
    return Step(state=state, sends=(Message(command=command, late=command),))


def probed(state: TrainingState, found: Probed) -> Step:
    """What epochs with other batch sizes would cost was probed, while its own consumption was not measured."""
    left = () if found.is_broken else tuple(size for size in state.to_probe if size not in found.batch_sizes)
    state = replace(state, to_probe=left, probing_s=state.probing_s + found.time_s)
    command = ReportEpochCosts(
        trial_number=state.trial_number or 0,
        trial_id=state.trial_id or "",
        probes=found.probes,
        out_of_memory=found.out_of_memory,
        time_s=found.time_s,
        energy_j=found.energy_j,
    )
    return Step(state=state, sends=(Message(command=command, late=command),))


def checkpointed(state: TrainingState, consumed: Consumption) -> TrainingState:
    """It has saved its state: from now on an interruption leaves it to be resumed."""
    return replace(state, is_resumable=True, consumed=consumed)


def why_left(state: TrainingState) -> str:
    """The reason of a training that has left its block without an outcome."""
    if state.metric is None:
        return "the training ended before its first evaluation"
    metric, target = metric_and_target(state.metric, state.spec.target_metric)
    return (
        f"the training ended before it reached the target {target}: the metric was {metric} after {epochs(state.epoch)}"
    )


def end_notices(state: TrainingState, *, ends_launch: bool = False) -> tuple[Notice, ...]:
    """What people should read of an end, once all that can be known of it is.

    ``ends_launch``: the ranks have lost each other, and no other trial follows in these processes.
    """
    found: list[Notice] = []
    facts: dict[str, object] = {"trial_number": state.trial_number, "job_id": state.job_id}
    if reason_code(state.outcome_reason) == OUT_OF_MEMORY:
        goes_on = (
            "this launch ends, and the next one takes a smaller one" if ends_launch else "going on with a smaller one"
        )
        what_next = goes_on if state.should_retry else "no attempt is left"
        words = f"batch size {state.batch_size} does not fit in memory; {what_next}"
        found.append(Notice(level=logging.WARNING, action="out_of_memory", words=words, facts=facts))
    outcome = "" if state.outcome is None else state.outcome.value
    words = f"{state.name} ended: {outcome}: {state.outcome_reason}"
    if state.probing_s:
        share = percent(state.probing_s / state.time_s) if state.time_s else NOTHING
        words += f"; probing epoch costs took {seconds(state.probing_s)} beside that ({share} of its time)"
    return (*found, Notice(level=logging.INFO, action="trial_ended", words=words, facts=facts))


def _reported(state: TrainingState, report: EpochReport, *, is_overruling: bool) -> Step:
    is_known = state.is_known(report.epoch)
    is_sent = not (state.is_refused or is_known)
    is_profiling = report.is_profiling or state.is_profiling
    resumption = None if state.resumption is None else state.resumption.after(report)
    state = replace(state, resumption=resumption, is_profiling=is_profiling and not (is_sent or is_known))
    counted = state.counted(Consumption(time_s=report.time_s, energy_j=report.energy_j))
    report = replace(report, time_s=counted.time_s, energy_j=counted.energy_j, is_profiling=is_profiling)
    cost = reported_cost(state, report, spec=state.spec, hardware=state.hardware)
    state = replace(progressed(state, report, cost=cost), last=report)
    if not is_sent:
        return Step(state=state)
    late = _report(state, report, is_journalled=True)
    command = late if is_overruling else _report(state, report, is_journalled=False)
    return Step(state=state, sends=(Message(command=command, late=late),), is_awaited=True)


def _evaluated_after_the_end(state: TrainingState, metric: float) -> Step:
    """Raises TrainFailed where the batch size has failed, unless the model is good: the verdict came late then."""
    if state.has_failed and not state.spec.reached_target(metric):
        raise state.failure
    if state.has_failed:
        return Step(state=replace(state, outcome=Outcome.CONVERGED, should_retry=False))
    if state.has_warned_of_end:
        return Step(state=state)
    words = f"{state.name} has ended, further evaluations are not reported: train `while not trial.finished`"
    notice = Notice(level=logging.WARNING, action="evaluation_ignored", words=words)
    return Step(state=replace(state, has_warned_of_end=True), notices=(notice,))


def _judged(state: TrainingState, reply: EpochJudged) -> Step:
    notices = _warnings(state, reply.warnings)
    state = replace(state, bound=reply.bound)
    if state.has_ended:
        return Step(state=state, notices=notices)
    state = replace(state, cost=reply.cost)
    if reply.should_stop:
        outcome = reply.outcome or Outcome.NOT_CONVERGED
        state = _with_outcome(state, outcome, reply.reason, should_retry=reply.should_retry)
        state = replace(state, phase=Phase.STOPPED if state.has_failed else Phase.ENDED)
    return Step(state=state, notices=notices)


def _refused(state: TrainingState, command: Command, problem: Problem) -> Step:
    if type(command) not in _REFUSED:
        return Step(state=state)
    what, action = _REFUSED[type(command)]
    is_fatal = isinstance(command, BeginTrial) or (
        isinstance(command, ReportEpoch) and problem.type not in _REFUSES_ONE_REPORT
    )
    words = f"{what.format(state.name)}: {problem.title}: {problem.detail}"
    if is_fatal and not state.has_ended:
        words += "; the training goes on, and nothing more of it is reported"
    facts: dict[str, object] = {"problem": problem.type, "job_id": state.job_id}
    notice = Notice(level=logging.WARNING, action=action, words=words, facts=facts)
    return Step(state=replace(state, is_refused=is_fatal or state.is_refused), notices=(notice,))


def _with_outcome(state: TrainingState, outcome: Outcome, reason: str, *, should_retry: bool) -> TrainingState:
    why = shown(reason)
    return replace(state, phase=Phase.ENDED, outcome=outcome, outcome_reason=why, should_retry=should_retry)


def _report(state: TrainingState, report: EpochReport, *, is_journalled: bool) -> ReportEpoch:
    return ReportEpoch(
        trial_number=state.trial_number or 0,
        trial_id=state.trial_id or "",
        epoch=report.epoch,
        time_s=report.time_s,
        energy_j=report.energy_j,
        metric=report.metric,
        is_journalled=is_journalled,
        is_profiling=report.is_profiling,
    )


def _totals(state: TrainingState, consumed: Consumption) -> Consumption | None:
    """Time and energy to the very end where that says something, None: as last reported."""
    lies_behind = state.resumption is not None and state.epoch < state.resumption.known.epoch
    if lies_behind or state.outcome not in (Outcome.INTERRUPTED, Outcome.INFEASIBLE):
        return None
    return state.counted(consumed)


def _finish(state: TrainingState, totals: Consumption | None) -> Message:
    """The end as a command; a late one may overtake reports that have to wait, and carries their totals."""
    assert state.outcome is not None
    command = FinishTrial(
        trial_number=state.trial_number or 0,
        trial_id=state.trial_id or "",
        outcome=state.outcome,
        reason=state.outcome_reason,
        time_s=None if totals is None else totals.time_s,
        energy_j=None if totals is None else totals.energy_j,
        may_resume=state.is_resumable,
    )
    late = replace(command, bound=state.bound, is_journalled=True)
    if totals is None and state.last is not None:
        late = replace(late, time_s=state.last.time_s, energy_j=state.last.energy_j)
    return Message(command=command, late=late)


def _warnings(state: TrainingState, sentences: Sequence[str]) -> tuple[Notice, ...]:
    return tuple(
        Notice(level=logging.WARNING, action="optimizer_warning", words=words, facts={"job_id": state.job_id})
        for words in sentences
    )


def _epoch_of(before: float, epoch: float | None, samples: float | None, samples_per_epoch: float | None) -> float:
    if epoch is not None and samples is not None:
        raise InvalidReport("on_evaluate takes epoch or samples, not both")
    if samples is not None:
        if not samples_per_epoch:
            raise InvalidReport("on_evaluate(samples=...) needs BatchSizeOptimizer(..., samples_per_epoch=...)")
        epoch = _number_of("samples", samples) / samples_per_epoch
    reached = before + 1.0 if epoch is None else _number_of("epoch", epoch)
    if not 0.0 < reached <= MOST_REPORTED:
        raise InvalidReport(
            f"progress must be a positive number of epochs of at most {MOST_REPORTED:g}, got {reached:g}; epoch and "
            "samples count what has been trained: epoch is 1 after the first one"
        )
    if reached <= before:
        raise InvalidReport(
            f"progress must grow from one evaluation to the next: it was {epochs(before)}, and is now "
            f"{epochs(reached)}; epoch and samples count from the beginning of the training"
        )
    return reached


def _metric_of(metric: SupportsFloat) -> float:
    """A metric as a float, from whatever holds one number, which text does not. Raises InvalidReport."""
    item = getattr(metric, "item", None)  # of a tensor, or of an array, which float() takes in fewer cases
    try:
        number: Any = item() if callable(item) else metric
        if not isinstance(number, (str, bytes, bytearray)):
            return float(number)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        what = f"{type(metric).__name__}: {str(metric)[:80]}"
        raise InvalidReport(f"a metric is one number, got {what}: {_one_number_of(metric)}") from error
    raise InvalidReport(f"a metric is one number, got the text {number[:80]!r}: convert it with float()")


def _one_number_of(metric: object) -> str:
    """What to do about a metric that is no number."""
    if metric is None:
        return "let the evaluation return its metric"
    if isinstance(metric, Mapping):
        key = next(iter(metric), "acc")
        return f"pass one of its values, such as metrics[{key!r}]"
    return "pass one of its numbers, or their mean; of a tensor or an array with one element, .item()"


def _number_of(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]  # whatever the user gave
    except (TypeError, ValueError, OverflowError):
        raise InvalidReport(f"{name} must be one number, got {type(value).__name__}: {value!r}") from None
