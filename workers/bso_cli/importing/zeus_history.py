"""What the rows of Zeus' server mean for a job of ours: its registration, and its trials with their outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field, NaiveDatetime, TypeAdapter, ValidationError

from bso.domain.commands import RegisterJob
from bso.domain.hardware import HardwareKind, hardware_problems
from bso.domain.identifiers import identifier_problem
from bso.domain.job_spec import InvalidSpec, resolve_spec
from bso.domain.progress import cost_of
from bso.domain.quantities import joules
from bso.domain.trial import Outcome
from bso.schema.wrong_values import explained
from bso_cli.importing.zeus_database import ZeusRows
from bso_gateway.zeus_models import ZeusJobSpec

SOURCE = "taken over from Zeus"
_MOST = 1e18
_Total = Annotated[float, Field(ge=0, le=_MOST, allow_inf_nan=False)]
_Moment = Annotated[NaiveDatetime, Field(ge=datetime(1990, 1, 1), le=datetime(2200, 1, 1))]  # noqa: DTZ001  # as Zeus has it


class NotTransferable(Exception):
    """A job cannot be taken over; the message says why, and what can be done."""


class _Trial(BaseModel):
    """A row of the table Trial, with Zeus' own rules for it. Seconds, joules; times are local ones of its server."""

    batch_size: int = Field(gt=0)
    trial_number: int = Field(gt=0)
    start_timestamp: _Moment
    end_timestamp: _Moment | None
    type: Literal["Exploration", "Concurrent", "MAB"]
    status: Literal["Dispatched", "Succeeded", "Failed"]
    time: _Total | None
    energy: _Total | None
    converged: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeusTrial:
    """A trial that ended at Zeus: how, when, and what it took; None: Zeus has recorded neither time nor energy.

    ``bound`` [J] is the one that it was stopped at. ``name`` is different for each trial that ever had this number.
    """

    number: int
    name: str
    batch_size: int
    stage: str
    started_at: datetime
    ended_at: datetime
    outcome: Outcome
    reason: str
    time_s: float | None
    energy_j: float | None
    bound: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeusHistory:
    """A job of Zeus' server. ``running`` are the numbers of trials that have not ended: they are left out."""

    job_id: str
    registration: RegisterJob
    hardware: HardwareKind
    trials: Sequence[ZeusTrial]
    running: Sequence[int]


def history_of(rows: ZeusRows, *, policy: str | None, is_strict: bool) -> ZeusHistory:
    """A job as the gateway would register it, and its trials by number. Raises NotTransferable."""
    spec = _spec(rows)
    job_id = spec.job_id
    assert job_id is not None
    registration = spec.registration(policy=policy, is_strict=is_strict)
    _require_acceptable(registration)
    trials = _trials(rows, spec)
    ended = [trial for trial in trials if trial.status != "Dispatched"]
    costs = _Costs(spec)
    found = {trial.trial_number: costs.ended(trial) for trial in sorted(ended, key=_end)}
    return ZeusHistory(
        job_id=job_id,
        registration=registration,
        hardware=spec.hardware,
        trials=[found[trial.trial_number] for trial in ended],
        running=[trial.trial_number for trial in trials if trial.status == "Dispatched"],
    )


def _spec(rows: ZeusRows) -> ZeusJobSpec:
    job_id = rows.job["job_id"]
    if (problem := identifier_problem(job_id)) is not None:
        raise NotTransferable(
            f"its job_id {problem}; begin a new job under another name, with the batch size that Zeus found as "
            "default_batch_size"
        )
    try:
        return ZeusJobSpec.model_validate({**rows.job, "batch_sizes": rows.batch_sizes})
    except ValidationError as error:
        raise NotTransferable(f"table Job or BatchSize has {_in_words(error)}; correct the row, or leave it") from None


def _require_acceptable(registration: RegisterJob) -> None:
    try:
        resolve_spec({**registration.defaults, **registration.spec})
    except InvalidSpec as invalid:
        raise NotTransferable(
            f"its specification is out of bso's ranges: {_listed(invalid.problems)}; register it anew with others"
        ) from None
    assert registration.hardware is not None
    if problems := hardware_problems(registration.hardware):
        raise NotTransferable(f"what it runs on cannot be so: {_listed(problems)}; correct the row in table Job")


def _listed(problems: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {problem}" for name, problem in problems.items())


def _trials(rows: ZeusRows, spec: ZeusJobSpec) -> list[_Trial]:
    found: dict[int, _Trial] = {}
    for row in rows.trials:
        where = f"trial {row['trial_number']} in table Trial"
        try:
            trial = TypeAdapter(_Trial).validate_python(row)
        except ValidationError as error:
            raise NotTransferable(f"{where} has {_in_words(error)}; correct or delete the row") from None
        if (problem := _contradiction(trial, spec)) is not None:
            raise NotTransferable(f"{where} {problem}; correct or delete the row")
        found[trial.trial_number] = trial
    return [found[number] for number in sorted(found)]


def _contradiction(trial: _Trial, spec: ZeusJobSpec) -> str | None:
    """What is wrong with the fields of a trial together; None: nothing is."""
    if trial.batch_size not in spec.batch_sizes:
        return f"has batch size {trial.batch_size}, which is not one of its job"
    if trial.status != "Dispatched" and trial.end_timestamp is None:
        return f"is {trial.status}, and has no end_timestamp"
    if trial.end_timestamp is not None and _ended_at(trial) < _started_at(trial):
        return f"ends at {trial.end_timestamp}, before its start at {trial.start_timestamp}"
    if trial.status == "Succeeded" and None in (trial.time, trial.energy, trial.converged):
        return "is Succeeded, and has no time, energy or converged"
    return None


def _in_words(error: ValidationError) -> str:
    """What is wrong with values of a row, by column."""
    return "; ".join(
        f"{'.'.join(map(str, found['loc'])) or 'values that do not fit together'}: {explained(found)}"
        for found in error.errors(include_url=False)
    )


def _end(trial: _Trial) -> tuple[datetime, int]:
    return _ended_at(trial), trial.trial_number


def _started_at(trial: _Trial) -> datetime:
    return trial.start_timestamp.astimezone()


def _ended_at(trial: _Trial) -> datetime:
    """The end; where summer time ended, the hour that came twice is the second one if the first would not do."""
    assert trial.end_timestamp is not None
    first = trial.end_timestamp.astimezone()
    return first if first >= _started_at(trial) else trial.end_timestamp.replace(fold=1).astimezone()


class _Costs:
    """How trials ended, which Zeus does not record, by its own rule: what it had seen gave the bound.

    Its lowest cost is that of any trial with a result, also of one that missed its target.
    """

    def __init__(self, spec: ZeusJobSpec) -> None:
        self._spec = spec
        self._least = math.inf

    def ended(self, trial: _Trial) -> ZeusTrial:
        """A trial that ended after all that were asked about before."""
        outcome, reason, bound = self._outcome(trial)
        assert trial.end_timestamp is not None
        return ZeusTrial(
            number=trial.trial_number,
            name=f"{trial.trial_number} {trial.start_timestamp.isoformat()}",
            batch_size=trial.batch_size,
            stage=trial.type,
            started_at=_started_at(trial),
            ended_at=_ended_at(trial),
            outcome=outcome,
            reason=f"{SOURCE}: {reason}",
            time_s=None if outcome is Outcome.INTERRUPTED else trial.time,
            energy_j=None if outcome is Outcome.INTERRUPTED else trial.energy,
            bound=bound,
        )

    def _outcome(self, trial: _Trial) -> tuple[Outcome, str, float | None]:
        if trial.status == "Failed":
            return Outcome.INTERRUPTED, "its training ended without a result", None
        assert trial.time is not None
        assert trial.energy is not None
        spec = self._spec
        cost = cost_of(energy_j=trial.energy, time_s=trial.time, eta_knob=spec.eta_knob, max_power_w=spec.max_power)
        before, self._least = self._least, min(self._least, cost)
        if trial.converged:
            return Outcome.CONVERGED, "it reached its target", None
        bound = math.inf if spec.beta_knob is None else spec.beta_knob * before
        if cost > bound > 0.0:
            words = f"stopped, as its cost {joules(cost)} was above the bound {joules(bound)}"
            return Outcome.COST_EXCEEDED, words, bound
        return Outcome.NOT_CONVERGED, f"it missed its target within {spec.max_epochs} epochs", None
