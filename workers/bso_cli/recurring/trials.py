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

_FAILURES = (Outcome.NOT_CONVERGED, Outcome.COST_EXCEEDED, Outcome.INFEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTrial:
    """A trial of a launched training, as far as is known from outside: the reply that began it, and the last one.

    ``is_resumable``: its training took a checkpoint; ``is_resumed``: a training here went on from one. The other fields
    are those of its last report; ``energy_j`` None: none was measured.
    """

    job_id: str
    begun: TrialBegun
    last: EpochJudged | TrialFinished | None = None
    energy_method: str | None = None
    is_resumable: bool = False
    is_resumed: bool = False
    time_s: float = 0.0
    energy_j: float | None = None
    epoch: float = 0.0
    metric: float | None = None

    @property
    def name(self) -> str:
        """The trial in words."""
        return f"trial {self.begun.trial_number or '(not registered yet)'} of job {self.job_id}"

    @property
    def cost(self) -> float:
        """Its cost so far [J]."""
        return self.last.cost if self.last else 0.0

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None: nobody has reported that yet."""
        return self.last.outcome if self.last else None

    @property
    def outcome_reason(self) -> str:
        """Why it ended so."""
        return self.last.reason if self.last and self.last.outcome else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The optimizer's, at its end or, while it runs, at its beginning."""
        return self.last.warnings if self.last and self.last.outcome else self.begun.warnings

    @property
    def is_energy_assumed(self) -> bool:
        """Whether its energy, and so its cost, is a constant power times time, not a measurement."""
        return self.energy_method == EnergyMethod.ASSUMED.value

    @property
    def waits_to_be_resumed(self) -> bool:
        """Whether it was interrupted, and may go on from a checkpoint."""
        return self.is_resumable and self.outcome is Outcome.INTERRUPTED

    @property
    def asks_for_another(self) -> bool:
        """Whether its batch size has failed, and the recurrence still wants a model."""
        return self.last is not None and self.last.should_retry and self.outcome in _FAILURES


class TrialLog:
    """Follows the file that a training's client appends to; only whole lines are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._trials: dict[tuple[str, int | str], SeenTrial] = {}  # by job, and number or the id of the beginning
        self._registered: dict[tuple[str, int | str], tuple[str, int | str]] = {}  # from that id to the number

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

    def end_line(self) -> None:
        """End the line that a killed training may have left half written."""
        with self._path.open("ab") as stream:
            stream.write(b"\n")

    def _read(self, line: bytes) -> SeenTrial | None:
        """The trial that has begun, gone on or ended with a line; one that makes no sense is skipped."""
        from bso.schema.errors import MalformedMessage

        try:
            return self._applied(json.loads(line))
        except (MalformedMessage, KeyError, TypeError, ValueError):
            return None

    def _applied(self, line: Mapping[str, Any]) -> SeenTrial | None:
        from bso.schema.codec import reply_from

        alone = (line["job_id"], line.get("beginning", ""))
        key = (line["job_id"], line["trial_number"] or line["beginning"])
        key = self._registered.get(key, key)
        if line.get("is_resumable"):
            self._trials[key] = replace(self._trials[key], is_resumable=True)
            return None
        reply = reply_from(line["type"], line["body"])
        is_resumption = bool(line.get("is_resumed"))
        if isinstance(reply, TrialBegun) and key != alone and alone in self._trials:  # it is registered now
            begun = replace(self._trials[alone], begun=reply)
            self._trials = {key if name == alone else name: one for name, one in self._trials.items()} | {key: begun}
            self._registered[alone] = key
            if not is_resumption:
                return None
        known = self._trials.get(key)
        if isinstance(reply, TrialBegun) and is_resumption:
            resumed = self._trials[key] = _resumed(known, line, reply)
            return resumed
        if known is None and isinstance(reply, TrialBegun):
            new = SeenTrial(job_id=line["job_id"], begun=reply, energy_method=line.get("energy_method"))
        elif known is not None and isinstance(reply, EpochJudged | TrialFinished) and _may_follow(known, reply):
            new = replace(known, last=reply, **_measured(line))
        else:
            return None
        self._trials[key] = new
        return new if known is None or known.outcome is not new.outcome else None


def seen_trials(path: Path) -> tuple[SeenTrial, ...]:
    """The trials that a file holds; none where it is not there."""
    if not path.exists():
        return ()
    log = TrialLog(path)
    log.read_new()
    return log.trials


def _resumed(known: SeenTrial | None, line: Mapping[str, Any], reply: TrialBegun) -> SeenTrial:
    """A trial that goes on from a checkpoint; one that was not seen before goes on from what the line says."""
    seen = known or SeenTrial(
        job_id=line["job_id"], begun=reply, energy_method=line.get("energy_method"), **_measured(line)
    )
    cost = float(line["cost"]) if known is None else known.cost
    goes_on = EpochJudged(should_stop=False, reason="", cost=cost, bound=reply.bound)
    return replace(seen, is_resumable=True, is_resumed=True, last=goes_on)


def _may_follow(trial: SeenTrial, reply: EpochJudged | TrialFinished) -> bool:
    """Whether the trial has not ended; one that was interrupted may go on from a checkpoint."""
    goes_on = reply.outcome is not Outcome.INTERRUPTED
    return trial.outcome is None or (trial.outcome is Outcome.INTERRUPTED and goes_on)


def _measured(line: Mapping[str, Any]) -> dict[str, Any]:
    """What the training measured; numbers that JSON lacks are strings."""
    names = ("time_s", "energy_j", "epoch", "metric")
    return {name: float(line[name]) for name in names if line.get(name) is not None}
