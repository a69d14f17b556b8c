"""What a launched training sent to the optimizer and received from it, as the client wrote it down (BSO_TRIAL_LOG)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bso.domain.hardware import EnergyMethod
from bso.domain.replies import EpochJudged, TrialBegun, TrialFinished
from bso.domain.trial import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTrial:
    """A trial of a launched training, as far as is known from outside. ``cost`` in J.

    ``time_s`` and ``energy_j`` are those of its last report; ``energy_j`` None: none was measured. ``warnings`` are the
    optimizer's, at its end or, while it runs, at its beginning.
    """

    job_id: str
    trial_number: int
    trial_id: str
    recurrence_id: str
    batch_size: int
    reason: str
    attempt: int
    default_batch_size: int | None = None
    energy_method: str | None = None
    reports: int = 0
    cost: float = 0.0
    time_s: float = 0.0
    energy_j: float | None = None
    epoch: float = 0.0
    metric: float | None = None
    outcome: Outcome | None = None
    outcome_reason: str = ""
    should_retry: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def is_energy_assumed(self) -> bool:
        """Whether its energy, and so its cost, is a constant power times time, not a measurement."""
        return self.energy_method == EnergyMethod.ASSUMED.value

    @property
    def is_open(self) -> bool:
        """Whether nobody has said yet how it ended."""
        return self.outcome is None

    @property
    def asks_for_another(self) -> bool:
        """Whether its batch size has failed, and the recurrence still wants a model."""
        failures = (Outcome.NOT_CONVERGED, Outcome.COST_EXCEEDED, Outcome.INFEASIBLE)
        return self.should_retry and self.outcome in failures


class TrialLog:
    """Follows the file that a training's client appends to; only whole lines are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._trials: dict[tuple[str, int], SeenTrial] = {}
        self._has_complained = False
        path.touch()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def trials(self) -> tuple[SeenTrial, ...]:
        """All trials seen so far, in the order of their beginning."""
        return tuple(self._trials.values())

    def read_new(self) -> list[SeenTrial]:
        """Read what is new; returns the trials that have begun, gone on or ended since the last time."""
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            new = stream.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [trial for line in whole.splitlines() if (trial := self._read(line)) is not None]

    def close(self, trial: SeenTrial, outcome: Outcome, reason: str) -> SeenTrial:
        """Note how a trial ended that could not say so itself, in the file too."""
        from bso.schema.codec import dump, wire_name

        body = TrialFinished(outcome=outcome, reason=reason, cost=trial.cost, should_retry=True)
        line = {"job_id": trial.job_id, "trial_number": trial.trial_number, "type": wire_name(TrialFinished)}
        with self._path.open("ab") as stream:
            torn = b"\n" if self._path.stat().st_size > self._offset else b""  # by a training that was killed
            stream.write(torn + dump(line | {"body": body}) + b"\n")
        self.read_new()
        return self._trials[trial.job_id, trial.trial_number]

    def _read(self, line: bytes) -> SeenTrial | None:
        """The trial that has begun, gone on or ended with a line; one that makes no sense is skipped."""
        from bso.schema.errors import MalformedMessage

        try:
            found = json.loads(line)
        except ValueError:
            return None  # a killed training could not finish it
        try:
            return self._applied(found)
        except (MalformedMessage, KeyError, TypeError, ValueError) as error:
            self._complain(error)
            return None

    def _complain(self, error: Exception) -> None:
        from rich.markup import escape

        from bso_cli.terminal import print_notice, styled

        if not self._has_complained:
            self._has_complained = True
            said = f"{self._path} has a line that no bso client of this version writes ({error!r}): it is skipped"
            print_notice(styled(f"[yellow]{escape(said)}[/]"))

    def _applied(self, line: Mapping[str, Any]) -> SeenTrial | None:
        from bso.schema.codec import reply_from

        key = (line["job_id"], line["trial_number"])
        reply = reply_from(line["type"], line["body"])
        known = self._trials.get(key)
        if known is None and isinstance(reply, TrialBegun):
            self._trials[key] = _begun(line, reply)
            return self._trials[key]
        if known is None or not isinstance(reply, EpochJudged | TrialFinished):
            return None
        if not known.is_open and not _is_woken(known, reply):
            return None
        ends = isinstance(reply, TrialFinished) or reply.should_stop
        self._trials[key] = replace(
            known,
            reports=known.reports + isinstance(reply, EpochJudged),
            cost=reply.cost,
            outcome=reply.outcome if ends else None,
            outcome_reason=reply.reason if ends else "",
            should_retry=reply.should_retry if ends else known.should_retry,
            warnings=reply.warnings if ends else known.warnings,
            **_measured(line),
        )
        return self._trials[key] if ends or not known.is_open else None


def _is_woken(trial: SeenTrial, reply: EpochJudged | TrialFinished) -> bool:
    """Whether an interrupted training has gone on with its trial, from a checkpoint."""
    is_report = isinstance(reply, EpochJudged) and reply.outcome is not Outcome.INTERRUPTED
    return is_report and trial.outcome is Outcome.INTERRUPTED


def _begun(line: Mapping[str, Any], reply: TrialBegun) -> SeenTrial:
    return SeenTrial(
        job_id=line["job_id"],
        trial_number=reply.trial_number,
        trial_id=reply.trial_id,
        recurrence_id=reply.recurrence_id,
        batch_size=reply.batch_size,
        reason=reply.reason,
        attempt=reply.attempt,
        default_batch_size=reply.spec.default_batch_size,
        energy_method=line.get("energy_method"),
        warnings=reply.warnings,
    )


def _measured(line: Mapping[str, Any]) -> dict[str, Any]:
    """What the training measured; numbers that JSON lacks are strings."""
    names = ("time_s", "energy_j", "epoch", "metric")
    return {name: float(line[name]) for name in names if line.get(name) is not None}
