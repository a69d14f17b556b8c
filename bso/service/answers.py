"""What the engine answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic_core import from_json

from bso.domain.commands import Command, Request
from bso.domain.errors import Retryable
from bso.domain.replies import Problem, Reply
from bso.schema.codec import ANSWERS, REPLIES, reply_from, wire_name
from bso.schema.errors import MalformedMessage
from bso.service.records import RecordedReply, StoredEvent

_UNREADABLE_S = 60.0  # then another worker, of that release, may answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The reply to one request, durable when it is returned.

    ``events`` are those newly recorded, to be published. ``is_repeat``: the command was decided before, this is the
    reply it got then. ``poison``: why the request can never be decided; the reply is then a problem, and the
    message belongs among the dead letters. ``error``: what was raised then, if so. ``took_s``: how long deciding took.
    """

    request: Request
    reply: Reply
    events: tuple[StoredEvent, ...] = ()
    is_repeat: bool = False
    poison: str | None = None
    error: BaseException | None = field(default=None, repr=False, compare=False)
    took_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A request that was not decided.

    ``cause``: Conflict (its job is locked), JobDamaged or StateTooNew (its job is unreadable), PolicyMissing (the
    policy of its job is not installed here), or OutOfTime.
    """

    request: Request
    cause: Retryable


def poisoned(request: Request, reason: str, error: BaseException | None = None) -> Answer:
    """The answer to a request that cannot be decided, and never will be, for a reason or what was raised."""
    problem = Problem(
        type="undecidable",
        title="The optimizer cannot handle this command",
        detail="Nothing was recorded. An operator finds the command and the reason among the dead letters.",
    )
    return Answer(request=request, reply=problem, poison=reason, error=error)


def misaddressed(request: Request, problems: Mapping[str, str]) -> Answer:
    """The answer to a request whose ids no store accepts, for what is wrong with them by name."""
    detail = "; ".join(f"{name} {problem}" for name, problem in problems.items())
    title = "The command has no valid address"
    return Answer(
        request=request, reply=Problem(type="invalid_identifier", title=title, detail=detail, fields=problems)
    )


def taken(request: Request, *, by: str = "another job") -> Answer:
    """The answer to a request whose command_id another command has used. Of which job that is may be a secret."""
    problem = Problem(
        type="command_id_taken",
        title="This command_id belongs to another command",
        detail=f"command_id {request.command_id} was used for {by}: every command needs an id of its own.",
        fields={"command_id": f"was used for {by}"},
    )
    return Answer(request=request, reply=problem)


def recalled(request: Request, known: RecordedReply) -> Answer:
    """The answer to a request that was decided before; where this release cannot read it, a request to ask later."""
    if known.job_id != request.job_id:
        return taken(request)
    if (other := _other_use(request.command, known)) is not None:
        return taken(request, by=other)
    try:
        reply = reply_from(known.type, from_json(known.reply))
    except (MalformedMessage, ValueError) as error:
        return _unreadable(request, str(error))
    return Answer(request=request, reply=reply, is_repeat=True)


def _other_use(command: Command, known: RecordedReply) -> str | None:
    """What else a command_id was used for, as far as the log says so; None: for this command, or one like it.

    A report that is sent again from a journal differs in that; it is the same one.
    """
    kind = wire_name(type(command))
    if known.type in REPLIES and known.type not in (ANSWERS[kind], wire_name(Problem)):
        return f"a command that was answered with {known.type}, which is no answer to {kind}"
    for name, before in (("trial_number", known.trial_number), ("epoch", known.epoch)):
        if before is not None and getattr(command, name, before) != before:
            return f"{kind} with {name} {before}"
    return None


def _unreadable(request: Request, why: str) -> Answer:
    problem = Problem(
        type="reply_unreadable",
        title="The recorded reply cannot be read here",
        detail=f"the command was decided, and the reply is damaged, or of a newer release than this worker's: {why}",
        is_retryable=True,
        retry_after_s=_UNREADABLE_S,
    )
    return Answer(request=request, reply=problem, is_repeat=True)
