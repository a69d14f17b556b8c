"""A transport that logs each reply to a file, so that ``bso recur`` can follow the training that it launched."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from bso.domain.commands import BeginTrial, Command, FinishTrial, ReportEpoch, Request
from bso.domain.replies import EpochJudged, Reply, TrialBegun, TrialFinished
from bso_client.transports.transport import Transport


class LoggedTransport:
    """Calls another transport and appends each reply about a trial to a file, one message a line.

    Each line also has the measurements of its command. It is written at once and in one piece, so that the
    reader knows of the trial whatever kills this process. A file that cannot be written harms nothing.
    """

    def __init__(self, transport: Transport, path: Path) -> None:
        self._transport = transport
        self._path = path

    async def start(self) -> None:
        """Start the other transport."""
        await self._transport.start()

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The other transport's reply, which is also logged."""
        reply = await self._transport.call(request, timeout_s=timeout_s)
        if isinstance(reply, TrialBegun | EpochJudged | TrialFinished):
            self._write(request, reply)
        return reply

    async def close(self) -> None:
        """Close the other transport."""
        await self._transport.close()

    def _write(self, request: Request, reply: TrialBegun | EpochJudged | TrialFinished) -> None:
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, _line(request, reply))
            finally:
                os.close(descriptor)


def _line(request: Request, reply: TrialBegun | EpochJudged | TrialFinished) -> bytes:
    from bso.schema.codec import dump, wire_name

    command = request.command
    trial_number = reply.trial_number if isinstance(reply, TrialBegun) else getattr(command, "trial_number", 0)
    words = {"job_id": request.job_id, "trial_number": trial_number, "type": wire_name(type(reply)), "body": reply}
    return dump(words | _measured(command)) + b"\n"


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
