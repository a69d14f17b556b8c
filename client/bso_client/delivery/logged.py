"""A transport that logs each reply to a file, so that ``bso recur`` can follow the training that it launched.

What a training decides alone, while nobody answers, is logged as if it had been the reply. That it took a checkpoint,
or goes on from one, is logged, too: the driver has to know which trials may be resumed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from bso.domain.commands import BeginTrial, Command, FinishTrial, ReportEpoch, Request
from bso.domain.replies import EpochJudged, Reply, TrialBegun, TrialFinished
from bso_client.training.state import TrainingState
from bso_client.transports.transport import Transport

_Logged = TrialBegun | EpochJudged | TrialFinished


class LoggedTransport:
    """Calls another transport and appends each reply about a trial to a file, one message a line.

    Each line also has the measurements of its command. It is written at once and in one piece, so that the
    reader knows of the trial whatever kills this process. A file that cannot be written harms nothing.
    """

    def __init__(self, transport: Transport, path: Path) -> None:
        self.unlogged: Transport = transport  # for what earlier trainings have left
        self._path = path

    async def start(self) -> None:
        """Start the other transport."""
        await self.unlogged.start()

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The other transport's reply, which is also logged."""
        reply = await self.unlogged.call(request, timeout_s=timeout_s)
        if isinstance(reply, TrialBegun | EpochJudged | TrialFinished):
            command = request.command
            number = reply.trial_number if isinstance(reply, TrialBegun) else getattr(command, "trial_number", 0)
            beginning = request.command_id if isinstance(reply, TrialBegun) else None
            _write_reply(self._path, request.job_id, number, reply, _measured(command), beginning=beginning)
        return reply

    async def close(self) -> None:
        """Close the other transport."""
        await self.unlogged.close()

    def begun_alone(self, state: TrainingState, beginning: str) -> None:
        """A training has begun while nobody answers; ``beginning`` is the command_id that registers it later."""
        self._write(state, beginning, _beginning_of(state), {"energy_method": state.hardware.energy_method})

    def resumed(self, state: TrainingState, beginning: str) -> None:
        """A training goes on with the trial of a checkpoint, which may have begun anywhere."""
        known = state.totals if state.resumption is None else state.resumption.known
        facts = {
            "is_resumed": True,
            "energy_method": state.hardware.energy_method,
            "cost": state.cost,
            "epoch": known.epoch,
            "metric": state.metric,
            "time_s": known.time_s,
            "energy_j": known.energy_j if state.is_energy_complete else None,
        }
        self._write(state, beginning, _beginning_of(state), facts)

    def ended(self, state: TrainingState, beginning: str) -> None:
        """A training has ended, whether or not the optimizer knows that."""
        if state.outcome is None:
            return
        end = TrialFinished(
            outcome=state.outcome, reason=state.outcome_reason, cost=state.cost, should_retry=state.should_retry
        )
        energy_j = state.energy_j if state.is_energy_complete else None
        measured = {"epoch": state.epoch, "metric": state.metric, "time_s": state.time_s, "energy_j": energy_j}
        self._write(state, beginning, end, measured)

    def _write(self, state: TrainingState, beginning: str, reply: _Logged, facts: Mapping[str, object]) -> None:
        _write_reply(self._path, state.job_id, state.trial_number or 0, reply, facts, beginning=beginning)


def logged(transport: Transport, path: Path | None) -> Transport:
    """The transport, with a log of replies where there is a file for it."""
    return transport if path is None else LoggedTransport(transport, path)


def log_checkpoint(path: Path | None, state: TrainingState, beginning: str) -> None:
    """Log, where there is a file for it, that a training took a checkpoint: its trial may be resumed.

    The rank that took it calls this; it may be another one than that which talks to the optimizer.
    """
    if path is not None:
        named = {"job_id": state.job_id, "trial_number": state.trial_number or 0, "beginning": beginning}
        _append(path, {**named, "is_resumable": True})


def _beginning_of(state: TrainingState) -> TrialBegun:
    return TrialBegun(
        trial_number=state.trial_number or 0,
        trial_id=state.trial_id or "",
        recurrence_id=state.recurrence_id or "",
        attempt=state.attempt,
        batch_size=state.batch_size,
        reason=state.reason,
        is_last_attempt=state.is_last_attempt,
        bound=state.bound,
        lease_s=state.lease_s,
        spec=state.spec,
    )


def _write_reply(
    path: Path, job_id: str, number: int, reply: _Logged, facts: Mapping[str, object], *, beginning: str | None
) -> None:
    from bso.schema.codec import wire_name

    words = {"job_id": job_id, "trial_number": number, "type": wire_name(type(reply)), "body": reply}
    named = {} if beginning is None else {"beginning": beginning}
    _append(path, {**words, **named, **facts})


def _append(path: Path, line: Mapping[str, object]) -> None:
    from bso.schema.codec import dump

    written = dump(dict(line)) + b"\n"
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, written)
        finally:
            os.close(descriptor)


def _measured(command: Command) -> dict[str, object]:
    """What the training reported and the reply does not repeat."""
    match command:
        case BeginTrial():
            return {"energy_method": command.hardware.energy_method}
        case ReportEpoch():
            return {
                "epoch": command.epoch,
                "metric": command.metric,
                "time_s": command.time_s,
                "energy_j": command.energy_j,
            }
        case FinishTrial(time_s=float(), energy_j=energy_j):
            return {"time_s": command.time_s, "energy_j": energy_j}
        case _:
            return {}
