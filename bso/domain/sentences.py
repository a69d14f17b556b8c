"""Events as sentences: what happened to a job, in the words of its users."""

from __future__ import annotations

from bso.domain.events import (
    AttentionNeeded,
    BatchSizeAllowed,
    ChangePoint,
    EpochCostsProbed,
    EpochReported,
    Event,
    JobDeleted,
    JobGiven,
    JobGranted,
    JobRegistered,
    JobRespecified,
    JobSnapshotted,
    LateResult,
    PowerProfiled,
    RecurrenceEnded,
    RecurrenceOpened,
    StopAcknowledged,
    StopWithdrawn,
    TrialEnded,
    TrialResumed,
    TrialStarted,
    TrialSuspended,
)
from bso.domain.hardware import EnergyMethod
from bso.domain.job_spec import JobSpec
from bso.domain.quantities import joules, listed, number, seconds
from bso.domain.rights import Right
from bso.domain.trial import Outcome

RIGHTS = {
    Right.READ: "read it",
    Right.TRAIN: "read it, and train",
    Right.OPERATE: "read it, train, change it, and delete it",
}
_STATUSES = {"arm": "available"}  # in a reader's words, where it is the policy's
ENERGY_ASSUMED = " (energy assumed, not measured)"


def sentence(event: Event) -> str:
    """What happened, in one line."""
    match event:
        case TrialStarted() | EpochReported() | TrialSuspended() | TrialResumed():
            return f"trial {event.trial_number}{_lived(event)}"
        case TrialEnded() | LateResult() | StopAcknowledged() | StopWithdrawn():
            return f"trial {event.trial_number} {_ended(event)}"
        case RecurrenceOpened() | RecurrenceEnded() | JobRegistered() | JobRespecified() | JobDeleted():
            return _of_job(event)
        case JobGranted() | JobGiven():
            return _of_rights(event)
        case JobSnapshotted():
            return "everything before this was exported and removed"
        case ChangePoint():
            risen = "risen" if event.cost >= event.old_reference else "fallen"
            costs = f"from {joules(event.old_reference)} to {joules(event.cost)}"
            return f"costs have {risen} {costs} with trial {event.trial_number}: costs are learnt anew"
        case AttentionNeeded():
            return f"somebody should look at this job: {event.reason}"
        case BatchSizeAllowed():
            return f"batch size {event.batch_size} may be tried again"
        case PowerProfiled() | EpochCostsProbed():
            return _measured(event)
        case _:  # an event of a policy's own
            return event.sentence


def _measured(event: PowerProfiled | EpochCostsProbed) -> str:
    if isinstance(event, PowerProfiled):
        return f"batch size {event.batch_size} was measured under {len(event.measurements)} power limits"
    costs = listed([f"{each.batch_size} ({joules(each.cost)} an epoch)" for each in event.probes])
    found = f"trial {event.trial_number} probed batch sizes {costs}" if event.probes else ""
    if event.out_of_memory:
        full = f"batch sizes {listed(event.out_of_memory)} do not fit in memory"
        found = f"{found}; {full}" if found else f"trial {event.trial_number} found that {full}"
    took = f"took {seconds(event.time_s)} and {joules(event.energy_j)}"
    return f"{found}; this {took}" if found else f"trial {event.trial_number} probed epoch costs, which {took}"


def _of_job(event: RecurrenceOpened | RecurrenceEnded | JobRegistered | JobRespecified | JobDeleted) -> str:
    match event:
        case RecurrenceOpened():
            return f"recurrence {event.recurrence_number} ({event.recurrence_id}) opened: a model is due"
        case RecurrenceEnded():
            which = f"with the model of trial {event.trial_number}" if event.has_model else "without a model"
            return f"recurrence {event.recurrence_id} ended {which}: {event.reason}"
        case JobRegistered():
            return f"the job was registered: {described(event.spec)}{_inherited(event)}"
        case JobRespecified():
            changed = f"the specification changed, version {event.version_number} is current"
            return f"{changed}: {described(event.spec)}{_inherited(event)}"
        case JobDeleted():
            return "the job was deleted"


def _of_rights(event: JobGranted | JobGiven) -> str:
    if isinstance(event, JobGiven):
        return f"the job belongs to login {event.owner} from now on"
    may = "may do nothing with the job any more" if event.right is None else f"may {RIGHTS[event.right]}"
    return f"login {event.login} {may}"


def _lived(event: TrialStarted | EpochReported | TrialSuspended | TrialResumed) -> str:
    match event:
        case TrialStarted():
            bound = "" if event.bound is None else f"; it is stopped above {joules(event.bound)}"
            assumed = ENERGY_ASSUMED if event.hardware.energy_method is EnergyMethod.ASSUMED else ""
            return f" began with batch size {event.batch_size}{_rate(event)}: {event.reason}{bound}{assumed}"
        case EpochReported():
            return (
                f", epoch {number(event.epoch)}: metric {number(event.metric)}, cost {joules(event.cost)} "
                f"after {seconds(event.time_s)}{'; power limits were profiled' if event.is_profiling else ''}"
            )
        case TrialSuspended():
            return " was interrupted, or silent for a whole lease: suspended until it reports again"
        case TrialResumed():
            return " reported again"


def _ended(event: TrialEnded | LateResult | StopAcknowledged | StopWithdrawn) -> str:
    match event:
        case TrialEnded():
            return f"ended as {_words(event.outcome.value)}: {event.reason} (cost {joules(event.cost)})"
        case LateResult():
            had_ended = "was given up" if event.recorded_outcome in (None, Outcome.INTERRUPTED) else "was stopped"
            return f"{had_ended}, but went on and ended as {_words(event.outcome.value)}: {event.reason}"
        case StopAcknowledged():
            return "knows that it was stopped"
        case StopWithdrawn():
            return "did not receive its stop, and went on: the stop is withdrawn"


def _inherited(event: JobRegistered | JobRespecified) -> str:
    if event.inherited is None:
        return ""
    sizes, source = event.inherited.batch_sizes, event.inherited.source
    return f"; what is known of batch sizes {listed(sizes)} is inherited from {source}" if sizes else ""


def _rate(event: TrialStarted) -> str:
    if event.learning_rate is None:
        return ""
    return f", learning rate {number(event.learning_rate.at(event.batch_size))} ({event.learning_rate.describe()})"


def described(spec: JobSpec) -> str:
    """A specification in a few words."""
    direction = "at least" if spec.higher_is_better_metric else "at most"
    return (
        f"batch sizes {listed(spec.batch_sizes)} (default {spec.default_batch_size}), target metric {direction} "
        f"{number(spec.target_metric, 12)} within {spec.max_epochs} epochs, eta {number(spec.eta_knob)}"
    )


def _words(value: str) -> str:
    return value.replace("_", " ")


def status_in_words(status: str, *, is_best: bool, is_tried: bool = True) -> str:
    """Where a batch size stands; it may be best on hardware that it has never run on."""
    if is_best:
        return "best so far" if is_tried else "expected best"
    return _STATUSES.get(status, status)
