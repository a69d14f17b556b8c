"""Admission: which deliveries are commands that may be decided, and on whose behalf. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from bso.domain.commands import FinishTrial, ReportEpoch, Request
from bso.domain.errors import Rejected
from bso.domain.foreign_text import is_plain, shown
from bso.domain.replies import Problem
from bso.schema.codec import decode_command
from bso.schema.envelope import MAX_MESSAGE_BYTES
from bso.schema.errors import UnsupportedSchema
from bso_broker.addresses import is_reply_address
from bso_broker.dead_letters import claimed_sender, sender_of
from bso_broker.messages import Delivery
from bso_broker.topology import COMMAND_QUEUE, COMMANDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who sent a delivery, and where an answer may go; ``reply_to`` None: nowhere."""

    user: str | None
    reply_to: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A command to be decided."""

    delivery: Delivery
    sender: Origin
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecidable:
    """A delivery that no worker can ever decide: for the dead letters. ``kind`` is one word for counting."""

    delivery: Delivery
    sender: Origin
    kind: str
    reason: str
    problem: Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The rules of admission. ``operators`` are believed when they send a command again in somebody else's name.

    ``gateways`` are believed when they say for which of their users they send it.
    """

    operators: Container[str] = frozenset()
    gateways: Container[str] = frozenset()
    requires_user_id: bool = False

    def admit(self, delivery: Delivery) -> Admitted | Undecidable:
        """Read a delivery, or say why it is refused. A forged reply address is not answered."""
        user = sender_of(delivery, operators=self.operators)
        is_answerable = is_reply_address(delivery.reply_to, user)
        sender = Origin(user=user, reply_to=delivery.reply_to if is_answerable else None)
        if delivery.is_damaged:
            return _damaged(delivery, sender)
        if delivery.discarded_bytes:
            return _too_large(delivery, sender)
        if delivery.exchange not in (COMMANDS, ""):
            return _astray(delivery, sender)
        if not delivery.parked_s and claimed_sender(delivery.headers, sender=user) is not None:
            return _parked_by_unknown_login(delivery, sender)
        if self.requires_user_id and user is None:
            return _anonymous(delivery, sender)
        if delivery.reply_to and not is_answerable:
            return _forged(delivery, sender)
        if (hidden := _with_hidden_characters(delivery, user)) is not None:
            return _unprintable(delivery, sender, hidden)
        request = self._read(delivery, sender)
        if isinstance(request, Undecidable):
            return request
        return Admitted(delivery=delivery, sender=sender, request=_as_parked(request) if delivery.parked_s else request)

    def _read(self, delivery: Delivery, sender: Origin) -> Request | Undecidable:
        """The command, in the name of its sender, or of the user for whom a gateway sends it."""
        user = sender.user
        try:
            request = decode_command(delivery.body, user=user)
        except Rejected as error:
            return _unreadable(delivery, sender, error)
        if user is not None and user in self.gateways:
            return replace(request, user=request.on_behalf_of or user, is_from_gateway=True)
        return request if request.on_behalf_of is None else _forged_user(delivery, sender, request.on_behalf_of)


def _as_parked(request: Request) -> Request:
    """A report or finish that has waited for its job is decided as one that was kept by its training.

    The training did not wait: a report is recorded and not judged; a finish counts against a stop that never arrived.
    """
    if not isinstance(request.command, ReportEpoch | FinishTrial):
        return request
    return replace(request, command=replace(request.command, is_journalled=True))


def _damaged(delivery: Delivery, sender: Origin) -> Undecidable:
    detail = "expected AMQP properties with text in UTF-8 and times before the year 10000, got others"
    problem = Problem(type="malformed", title="The message's properties cannot be read", detail=detail)
    return Undecidable(
        delivery=delivery, sender=sender, kind="malformed", reason=f"malformed: {detail}", problem=problem
    )


def _with_hidden_characters(delivery: Delivery, user: str | None) -> str | None:
    """The property by which people know a command that holds characters which they cannot see; None: none does."""
    found = {"user_id": user, "message_id": delivery.message_id, "correlation_id": delivery.correlation_id}
    return next((name for name, text in found.items() if text and not is_plain(text)), None)


def _unprintable(delivery: Delivery, sender: Origin, name: str) -> Undecidable:
    detail = f"expected a {name} without hidden characters (control characters, for example), got one with some"
    problem = Problem(type="malformed", title="The message's properties cannot be shown", detail=detail)
    return Undecidable(
        delivery=delivery, sender=sender, kind="malformed", reason=f"malformed: {detail}", problem=problem
    )


def _too_large(delivery: Delivery, sender: Origin) -> Undecidable:
    detail = f"expected at most {MAX_MESSAGE_BYTES} bytes, got {delivery.discarded_bytes}; the body is thrown away"
    problem = Problem(type="too_large", title="The message is too large for a command", detail=detail)
    return Undecidable(
        delivery=delivery, sender=sender, kind="too_large", reason=f"too_large: {detail}", problem=problem
    )


def _astray(delivery: Delivery, sender: Origin) -> Undecidable:
    detail = (
        f"expected commands from exchange {COMMANDS!r}, got a message from {delivery.exchange!r}: somebody has bound "
        f"the queue {COMMAND_QUEUE!r} to it; delete that binding (the page of the queue, in RabbitMQ's management)"
    )
    problem = Problem(type="foreign_binding", title="The message is no command", detail=detail)
    reason = f"foreign_binding: {detail}"
    return Undecidable(delivery=delivery, sender=sender, kind="foreign_binding", reason=reason, problem=problem)


def _anonymous(delivery: Delivery, sender: Origin) -> Undecidable:
    detail = "expected the message's user_id to name the login that sends it, got none"
    problem = Problem(type="no_user_id", title="The command does not say who sends it", detail=detail)
    return Undecidable(
        delivery=delivery, sender=sender, kind="no_user_id", reason=f"no_user_id: {detail}", problem=problem
    )


def _forged(delivery: Delivery, sender: Origin) -> Undecidable:
    owner = "its sender" if sender.user is None else f"user {sender.user!r}"
    address = str(delivery.reply_to)[:120]
    detail = f"expected reply_to to name a reply queue of {owner} (bso.reply.<user>.<uuid>), got {address!r}"
    problem = Problem(type="forged_reply_address", title="The reply address is not the sender's own", detail=detail)
    reason = f"forged_reply_address: {detail}"
    return Undecidable(delivery=delivery, sender=sender, kind="forged_reply_address", reason=reason, problem=problem)


def _forged_user(delivery: Delivery, sender: Origin, claimed: str) -> Undecidable:
    detail = (
        f"expected on_behalf_of from a gateway alone, got {shown(claimed[:120])!r} from login {sender.user!r}; if that "
        "is a gateway's login, add it to the workers' BSO_GATEWAYS, restart them, and run `bso dead-letters requeue`"
    )
    problem = Problem(type="forged_user", title="The sender may not act for others", detail=detail)
    return Undecidable(
        delivery=delivery, sender=sender, kind="forged_user", reason=f"forged_user: {detail}", problem=problem
    )


def _parked_by_unknown_login(delivery: Delivery, sender: Origin) -> Undecidable:
    login = sender.user
    detail = (
        f"expected a command parked by the workers' login or by an operator, got one that login {login!r} has parked "
        f"for another; if it is a login of workers, add it to their operators (BSO_OPERATORS), restart them, and run "
        "`bso dead-letters requeue`"
    )
    problem = Problem(type="parked_by_unknown_login", title="The command's sender is not certain", detail=detail)
    reason = f"parked_by_unknown_login: {detail}"
    return Undecidable(delivery=delivery, sender=sender, kind="parked_by_unknown_login", reason=reason, problem=problem)


def _unreadable(delivery: Delivery, sender: Origin, error: Rejected) -> Undecidable:
    kind = "unsupported_schema" if isinstance(error, UnsupportedSchema) else "malformed"
    problem = Problem(type=kind, title="The message is not a command that this release reads", detail=str(error))
    return Undecidable(delivery=delivery, sender=sender, kind=kind, reason=f"{kind}: {error}", problem=problem)
