"""How a training begins: as the optimizer says, alone where nobody answers, or from a checkpoint."""

from __future__ import annotations

import logging
from dataclasses import replace

from bso.domain.commands import BeginTrial, RegisterJob
from bso.domain.foreign_text import shown
from bso.domain.hardware import HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import LeaseRenewed, TrialBegun
from bso_client.training.state import Message, Notice, Phase, Step, TrainingState, resumption_of


def begun(
    reply: TrialBegun, *, job_id: str, key: str, hardware: HardwareKind, learning_rate: LearningRate | None
) -> Step:
    """The optimizer has begun the trial."""
    state = TrainingState(
        job_id=job_id,
        key=key,
        batch_size=reply.batch_size,
        reason=shown(reply.reason),
        spec=reply.spec,
        hardware=hardware,
        learning_rate=learning_rate,
    )
    return _announced(registered(state, reply))


def begun_alone(
    *,
    job_id: str,
    key: str,
    choice: tuple[int, str],
    spec: JobSpec,
    hardware: HardwareKind,
    attempt: int,
    recurrence_id: str | None,
    learning_rate: LearningRate | None,
    replaces: str,
    registers: RegisterJob,
) -> Step:
    """Nobody answered: it begins with a batch size of its own choice, and is registered later, after its job.

    ``choice`` is ``(batch_size, reason)``; ``replaces`` is the command_id of the question that got no answer;
    ``registers`` registers the job.
    """
    batch_size, reason = choice
    state = TrainingState(
        job_id=job_id,
        key=key,
        batch_size=batch_size,
        reason=reason,
        spec=spec,
        hardware=hardware,
        attempt=attempt,
        is_last_attempt=attempt >= spec.max_attempts,
        learning_rate=learning_rate,
    )
    return replace(_announced(state), sends=_registrations(state, recurrence_id, replaces, registers))


def resumed(
    saved: TrainingState,
    *,
    spec: JobSpec,
    reply: LeaseRenewed | None,
    recurrence_id: str | None,
    learning_rate: LearningRate | None,
    registers: RegisterJob,
) -> Step:
    """It goes on from a checkpoint; ``reply`` None: the optimizer has not answered.

    A trial that the optimizer has not registered yet, as far as the checkpoint knows, is registered later, after its
    job, which ``registers`` registers.
    """
    state = replace(
        saved,
        reason="resumed from a saved state",
        spec=spec,
        learning_rate=learning_rate,
        phase=Phase.READY,
        has_started=False,
        reports=0,
        time_s=saved.consumed.time_s,
        energy_j=saved.consumed.energy_j or 0.0,
        last=None,
        outcome=None,
        outcome_reason="",
        should_retry=False,
        is_refused=False,
        is_resumed=True,
        is_resumable=True,
        is_called_off=False,
        resumption=None,
    )
    if reply is not None:
        state = replace(
            state,
            recurrence_id=reply.recurrence_id,
            bound=reply.bound,
            lease_s=reply.lease_s,
            power_profile=reply.power_profile,
            nearest_power_profile=reply.nearest_power_profile,
            resumption=resumption_of(reply, saved.consumed),
        )
    sends = () if state.trial_id is not None else _registrations(state, recurrence_id, None, registers)
    return replace(_announced(state), sends=sends)


def registered(state: TrainingState, reply: TrialBegun) -> TrainingState:
    """The training with the number and all else that the optimizer has given it."""
    profile = reply.power_profile or state.power_profile
    return replace(
        state,
        trial_number=reply.trial_number,
        trial_id=reply.trial_id,
        recurrence_id=reply.recurrence_id,
        attempt=reply.attempt,
        is_last_attempt=reply.is_last_attempt,
        bound=reply.bound,
        lease_s=reply.lease_s,
        spec=reply.spec,
        power_profile=profile,
        nearest_power_profile=None if profile else reply.nearest_power_profile,
        to_probe=reply.to_probe or state.to_probe,
    )


def _announced(state: TrainingState) -> Step:
    number = "(not registered yet)" if state.trial_number is None else state.trial_number
    facts: dict[str, object] = {
        "job_id": state.job_id,
        "trial_number": state.trial_number,
        "batch_size": state.batch_size,
    }
    words = f"trial {number}: batch size {state.batch_size}: {state.reason}"
    notice = Notice(level=logging.INFO, action="trial_begun", words=words, facts=facts)
    return Step(state=state, notices=(notice,))


def late_beginning(state: TrainingState, recurrence_id: str | None, replaces: str | None = None) -> BeginTrial:
    """What registers a trial that has begun while nobody answered."""
    return BeginTrial(
        hardware=state.hardware,
        recurrence_id=recurrence_id,
        batch_size=state.batch_size,
        replaces=replaces,
        learning_rate=state.learning_rate,
    )


def _registrations(
    state: TrainingState, recurrence_id: str | None, replaces: str | None, registers: RegisterJob
) -> tuple[Message, ...]:
    command = late_beginning(state, recurrence_id, replaces)
    return tuple(Message(command=each, late=each) for each in (registers, command))
