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
        news = [self._read(line) for line in map(_parsed, whole.splitlines()) if line is not None]
        return [trial for trial in news if trial is not None]

    def close(self, trial: SeenTrial, outcome: Outcome, reason: str) -> SeenTrial:
        """Note how a trial ended that could not say so itself, in the file too."""
        from bso.schema.codec import dump, wire_name

        body = TrialFinished(outcome=outcome, reason=reason, cost=trial.cost, should_retry=True)
        line = {"job_id": trial.job_id, "trial_number": trial.trial_number, "type": wire_name(TrialFinished)}
        with self._path.open("ab") as stream:
            stream.write(self._line_break() + dump(line | {"body": body}) + b"\n")
        self.read_new()
        return self._trials[trial.job_id, trial.trial_number]

    def _line_break(self) -> bytes:
        """What ends the line that a killed training could not end."""
        return b"\n" if self._path.stat().st_size > self._offset else b""

    def _read(self, line: Mapping[str, Any]) -> SeenTrial | None:
        """What a line says of its trial; a line that makes no sense is skipped, and the first one reported."""
        from bso.schema.errors import MalformedMessage

        try:
            return self._applied(line)
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
        if isinstance(reply, TrialBegun):
            known = self._trials.get(key)
            return None if known is not None else self._note(_begun(line, reply))
        trial = self._trials.get(key)
        if trial is None or not (trial.is_open or _is_woken(trial, reply)):
            return None
        is_news = not trial.is_open
        trial = self._note(_measured(replace(trial, outcome=None, outcome_reason=""), line))
        if isinstance(reply, EpochJudged):
            trial = self._note(replace(trial, reports=trial.reports + 1, cost=reply.cost))
            return self._ended(trial, reply) if reply.should_stop else trial if is_news else None
        return self._ended(replace(trial, cost=reply.cost), reply) if isinstance(reply, TrialFinished) else None

    def _ended(self, trial: SeenTrial, reply: EpochJudged | TrialFinished) -> SeenTrial:
        return self._note(
            replace(
                trial,
                outcome=reply.outcome,
                outcome_reason=reply.reason,
                should_retry=reply.should_retry,
                warnings=reply.warnings,
            )
        )

    def _note(self, trial: SeenTrial) -> SeenTrial:
        self._trials[trial.job_id, trial.trial_number] = trial
        return trial


def _is_woken(trial: SeenTrial, reply: object) -> bool:
    """Whether an interrupted training has gone on with its trial, from a checkpoint."""
    if trial.outcome is not Outcome.INTERRUPTED or not isinstance(reply, EpochJudged):
        return False
    return reply.outcome is not Outcome.INTERRUPTED


def _parsed(line: bytes) -> Mapping[str, Any] | None:
    """A line as an object; None for one that a killed training could not finish."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


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


def _measured(trial: SeenTrial, line: Mapping[str, Any]) -> SeenTrial:
    """With what the training measured; numbers that JSON lacks are strings."""

    def sent(name: str, otherwise: float | None) -> float | None:
        return otherwise if line.get(name) is None else float(line[name])

    return replace(
        trial,
        time_s=sent("time_s", None) or trial.time_s,
        energy_j=sent("energy_j", trial.energy_j),
        epoch=sent("epoch", None) or trial.epoch,
        metric=sent("metric", trial.metric),
    )
