"""Leases: renewing them, and what happens when they lapse."""

from __future__ import annotations

from bso.domain.commands import ExpireLease, RenewLease
from bso.domain.decide.contract import Context, Decision, Facts, bound_of, refused_after_end, unchanged, with_lease
from bso.domain.decide.trial_end import TrialEnd, end_trial
from bso.domain.events import Event, TrialResumed, TrialSuspended
from bso.domain.evolve import apply
from bso.domain.job import Job
from bso.domain.replies import LeaseExpired, LeaseRenewed
from bso.domain.trial import LEASE_LAPSED, Outcome, Trial, TrialState


def renew_lease(job: Job, trial: Trial, command: RenewLease, facts: Facts, context: Context) -> Decision:
    """Extend a running trial's lease, or wake a suspended trial up."""
    if not trial.is_active:
        return refused_after_end(job, trial)
    events: tuple[Event, ...] = ()
    if trial.state is TrialState.SUSPENDED:
        events = (TrialResumed(trial_number=trial.trial_number),)
    after = with_lease(apply(job, events), trial.trial_number, context.lease_ends(trial))
    size, hardware = trial.batch_size, trial.hardware
    reply = LeaseRenewed(
        trial_number=trial.trial_number,
        recurrence_id=trial.recurrence_id,
        batch_size=size,
        epoch=trial.epoch,
        bound=bound_of(after, trial),
        lease_s=context.rules.lease_of(trial),
        power_profile=facts.power_profile(size, hardware) if command.is_resumption else (),
        nearest_power_profile=facts.nearest_power_profile(size, hardware) if command.is_resumption else None,
        time_s=trial.time_s,
        energy_j=trial.energy_j,
    )
    return Decision(job=after, events=events, reply=reply)


def expire_lease(job: Job, trial: Trial, command: ExpireLease, context: Context) -> Decision:
    """Suspend a trial whose lease lapsed; end one that stayed suspended for the whole resume window."""
    is_current = trial.lease_expires_at == command.lease_expires_at
    if not trial.is_active or not is_current or context.now < command.lease_expires_at:
        return unchanged(job, LeaseExpired(state=trial.state))
    if trial.state is TrialState.RUNNING:
        suspended = TrialSuspended(trial_number=trial.trial_number)
        after = with_lease(apply(job, [suspended]), trial.trial_number, context.resume_window_ends())
        return Decision(job=after, events=(suspended,), reply=LeaseExpired(state=TrialState.SUSPENDED))
    reason = f"{LEASE_LAPSED}: the trial sent nothing for the whole resume window"
    after, events = end_trial(job, trial, TrialEnd.of(trial, Outcome.INTERRUPTED, reason), context.now)
    return Decision(job=after, events=events, reply=LeaseExpired(state=TrialState.ENDED))
