"""Zeus' batch size server, as its clients see it: the same routes, bodies and statuses (zeus 0.16).

A trial is known by its job and its number; the worker finds it under the job's lock. Nothing is kept here.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from bso.domain.commands import BeginTrial, DeleteJob, DescribeJob, FinishTrial, ReportEpoch
from bso.domain.identifiers import identifier_problem, job_id_for
from bso.domain.replies import (
    Deleted,
    EpochJudged,
    JobDescription,
    Problem,
    Registered,
    Reply,
    TrialBegun,
    TrialFinished,
)
from bso.domain.trial import DIVERGED, FAILURES, Outcome, reason_code
from bso_gateway.http import IDEMPOTENCY_KEY, RETRY_AFTER, Gate, HttpError, answer, command_id_of
from bso_gateway.zeus_models import (
    Detail,
    ErrorMessage,
    MethodUnknown,
    ReportResponse,
    TrainingResult,
    TrialId,
    ZeusJobSpec,
)

GO_ON = "Stop condition not met, keep training"
SUCCEEDED = "Train succeeded"
_FAILED = {
    Outcome.COST_EXCEEDED: "Batch Size({}) exceeded the cost upper bound: ",
    Outcome.NOT_CONVERGED: "Train failed to converge within max_epoch: ",
}
"""Before our own reason: by these words clients know how a training has failed."""
_REACHED_OVER_BOUND = "; its cost is above beta_knob times the lowest one, and a target that is reached is kept"
_OVER_BOUND = "the target was reached, at a cost above beta_knob times the lowest one"
_ENDED = (*(outcome.value for outcome in FAILURES), Outcome.CONVERGED.value)
_NAMES = {
    "time_s": "time",
    "energy_j": "energy",
    "epoch": "current_epoch",
    "hardware.max_power_w": "max_power",
    "hardware.number_of_gpus": "number_of_gpus",
    "hardware.gpu_model": "gpu_model",
}
"""The names that Zeus' clients have for fields of ours."""
_PATHS = ("/jobs", "/jobs/batch_size", "/report", "/trials")


def is_zeus_path(path: str) -> bool:
    """Whether a path is one of Zeus'."""
    return path in _PATHS


class ZeusWire:
    """The routes. ``is_strict`` answers as Zeus does where this optimizer decides otherwise."""

    def __init__(self, gate: Gate, *, policy: str | None, is_strict: bool) -> None:
        self._gate = gate
        self._policy = policy
        self._is_strict = is_strict
        going_on = ReportResponse(stop_train=False, converged=False, message=GO_ON)
        self._going_on = answer(going_on.model_dump())  # to nearly all reports

    def router(self) -> APIRouter:
        """All routes, with what they take and return."""
        router = APIRouter(tags=["Zeus"])
        router.post("/jobs", **_described(ZeusJobSpec, ZeusJobSpec, 201, 409, "Register a job"))(self.register)
        router.delete("/jobs", **_described(None, None, 200, 404, "Delete a job"))(self.delete)
        router.get("/jobs/batch_size", **_described(None, TrialId, 200, 400, "Begin a trial"))(self.begin)
        router.post("/report", **_described(TrainingResult, ReportResponse, 200, 400, "Report an epoch"))(self.report)
        router.patch("/trials", **_described(TrialId, None, 200, 404, "End a trial"))(self.end)
        return router

    async def register(self, request: Request) -> Response:
        """201: the job is new; 200: it is known with exactly this specification; 409: with another one."""
        spec = await self._gate.read(request, ZeusJobSpec)
        if spec.job_id is None:
            _check_identifier("job_id_prefix", spec.job_id_prefix)
            spec = spec.model_copy(update={"job_id": job_id_for(spec.job_id_prefix, command_id_of(request))})
        _check_identifier("job_id", spec.job_id)
        assert spec.job_id is not None
        command = spec.registration(policy=self._policy, is_strict=self._is_strict)
        reply = await self._gate.call(request, spec.job_id, command)
        if isinstance(reply, Registered):
            return answer(spec.model_dump(), status=201 if reply.is_new else 200)
        raise _refused(reply, unknown=400)

    async def begin(self, request: Request, job_id: str) -> Response:
        """A new trial of the job, each time: a second request is a second trial beside the first one."""
        described = await self._gate.call(request, _checked(job_id), DescribeJob())
        if not isinstance(described, JobDescription):
            raise _refused(described, unknown=400)
        if described.hardware is None:
            raise HttpError(400, f"job {job_id} was registered by another client, which says what each trial runs on")
        command = BeginTrial(hardware=described.hardware, renews_lease=False)
        reply = await self._gate.call(request, job_id, command)
        if isinstance(reply, TrialBegun):
            begun = TrialId(job_id=job_id, batch_size=reply.batch_size, trial_number=reply.trial_number)
            return answer(begun.model_dump())
        raise _refused(reply, unknown=400)

    async def report(self, request: Request) -> Response:
        """Whether to stop. Of several reports of an epoch, the first one counts."""
        result = await self._gate.read(request, TrainingResult)
        command = ReportEpoch(
            trial_number=result.trial_number,
            trial_id="",
            epoch=float(result.current_epoch),
            time_s=result.time,
            energy_j=result.energy,
            metric=result.metric,
            batch_size=result.batch_size,
        )
        reply = await self._gate.call(request, _checked(result.job_id), command)
        if isinstance(reply, EpochJudged) and not reply.should_stop:
            return self._going_on
        if isinstance(reply, EpochJudged):
            return answer(self._judged(reply, result.batch_size).model_dump())
        if isinstance(reply, Problem) and reply.type == "trial_ended":
            return answer(self._ended_before(result.trial_number, reply).model_dump())
        raise _refused(reply, unknown=400)

    def _judged(self, reply: EpochJudged, batch_size: int) -> ReportResponse:
        if reply.outcome is not Outcome.CONVERGED:
            has_diverged = reason_code(reply.reason) == DIVERGED
            words = "" if reply.outcome is None or has_diverged else _FAILED.get(reply.outcome, "").format(batch_size)
            return ReportResponse(stop_train=True, converged=False, message=f"{words}{reply.reason}")
        if reply.is_over_bound and self._is_strict:
            words = _FAILED[Outcome.COST_EXCEEDED].format(batch_size)
            return ReportResponse(stop_train=True, converged=False, message=f"{words}{_OVER_BOUND}")
        words = _REACHED_OVER_BOUND if reply.is_over_bound else ""
        return ReportResponse(stop_train=True, converged=True, message=f"{SUCCEEDED}{words}")

    def _ended_before(self, number: int, problem: Problem) -> ReportResponse:
        """The answer to a report after the end of its trial. Raises HttpError where that had no result."""
        outcome = problem.context.get("outcome")
        if outcome is None:  # its job was deleted
            raise HttpError(400, problem.detail, kind=problem.type)
        if outcome not in _ENDED:
            raise HttpError(400, f"Trial({number}) is already reported but converged is not set.")
        is_kept = not (self._is_strict and problem.context.get("is_over_bound"))
        return ReportResponse(
            stop_train=True,
            converged=outcome == Outcome.CONVERGED.value and is_kept,
            message=f"Result for this trial({number}) is already reported.",
        )

    async def end(self, request: Request) -> Response:
        """End a trial whose training has ended, however; without effect on one that has ended before."""
        trial = await self._gate.read(request, TrialId)
        command = FinishTrial(
            trial_number=trial.trial_number,
            trial_id="",
            outcome=Outcome.INTERRUPTED,
            reason="its process has ended",
            batch_size=trial.batch_size,
        )
        reply = await self._gate.call(request, _checked(trial.job_id, unknown=404), command)
        if isinstance(reply, TrialFinished):
            return answer(None)
        if isinstance(reply, Problem) and reply.type == "trial_ended":  # its job was deleted
            raise HttpError(404, reply.detail, kind=reply.type)
        raise _refused(reply, unknown=404)

    async def delete(self, request: Request, job_id: str) -> Response:
        """Delete a job."""
        reply = await self._gate.call(request, _checked(job_id, unknown=404), DeleteJob())
        if isinstance(reply, Deleted):
            return answer(None)
        raise _refused(reply, unknown=404)


def error_response(error: HttpError) -> Response:
    """An error as Zeus' clients read it."""
    if error.status != 422:
        shown = answer(ErrorMessage(message=error.message).model_dump(), status=error.status)
    else:
        details = [
            {"loc": ["body", *_place(name)], "msg": words, "type": "value_error"}
            for name, words in error.fields.items()
        ]
        shown = answer({"detail": details}, status=422)
    shown.headers.update(error.headers)
    return shown


def _place(name: str) -> list[str | int]:
    """Where a field of ours stands in the body of a client."""
    known = _NAMES.get(name, name)
    return [int(part) if part.isdigit() else part for part in known.split(".") if part]


def _refused(reply: Reply, *, unknown: int) -> HttpError:
    """A refusal as an error; ``unknown`` is the status where the job or the trial does not exist."""
    if not isinstance(reply, Problem):
        return HttpError(500, f"the optimizer gave an answer of another kind: {type(reply).__name__}")
    if reply.is_retryable:
        return HttpError(503, reply.detail, kind=reply.type, retry_after_s=reply.retry_after_s or 1.0)
    if reply.fields and reply.type in ("invalid_spec", "invalid_registration", "invalid_report", "invalid_trial"):
        return HttpError(422, reply.detail, kind=reply.type, fields=reply.fields)
    status = {
        "job_conflict": 409,
        "command_id_taken": 409,
        "unknown_job": unknown,
        "unknown_trial": unknown,
        "not_owner": 403,
    }
    return HttpError(status.get(reply.type, 400), reply.detail, kind=reply.type)


def _check_identifier(name: str, value: object) -> None:
    """Raise HttpError for a name that no job can have."""
    if (problem := identifier_problem(value)) is not None:
        raise HttpError(422, f"{name} {problem}", kind="invalid_body", fields={name: problem})


def _checked(job_id: str, *, unknown: int = 400) -> str:
    """The job_id; one that no job can have is one of an unknown job. Raises HttpError."""
    if identifier_problem(job_id) is not None:
        raise HttpError(unknown, f"Unknown job({job_id[:60]}). Please register the job first", kind="unknown_job")
    return job_id


def _described(
    body: type[BaseModel] | None, made: type[BaseModel] | None, status: int, refusal: int, summary: str
) -> dict[str, Any]:
    """What OpenAPI says of a route: bodies are read here, as Zeus' client sends them without a Content-Type."""
    responses: dict[int | str, Any] = {
        refusal: {"model": ErrorMessage},
        503: {"model": ErrorMessage, "headers": {"Retry-After": RETRY_AFTER}},
        405: {"model": MethodUnknown, "description": "The path has no such method"},
        409: {"model": ErrorMessage, "description": "The job is another one, or the Idempotency-Key was used before"},
        422: {"model": Detail, "description": "A body or a query that is not as expected"},
        "default": {"model": ErrorMessage, "description": "Refused: 401, 403, 408, 413, 415, 421, 429 or 500"},
    }
    if made is not None:
        responses[status] = {"model": made}
    if body is ZeusJobSpec:
        responses[200] = {"model": ZeusJobSpec}
    extra: dict[str, Any] = {"parameters": [IDEMPOTENCY_KEY]}
    if body is not None:
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"responses": responses, "openapi_extra": extra, "summary": summary, "response_class": Response}
