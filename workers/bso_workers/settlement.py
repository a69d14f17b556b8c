"""Settling deliveries: replies go out, then deliveries are acknowledged; what can never be decided is set aside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.commands import FACTS
from bso.domain.errors import Misconfigured, Rejected, Retryable
from bso.domain.events import AttentionNeeded, EpochReported
from bso.domain.foreign_text import shown
from bso.domain.quotas import OVER_QUOTA, over_quota
from bso.domain.replies import KEPT, Problem, Reply
from bso.schema.codec import encode_reply, wire_name
from bso.service.answers import Answer
from bso_broker.addresses import reply_id
from bso_broker.messages import Delivery
from bso_broker.messages import Reply as BrokerReply
from bso_broker.ports import CommandSource, ReplySink
from bso_workers.admission import Admitted, Origin, Undecidable
from bso_workers.metrics import Metrics
from bso_workers.rates import LETTERS_A_DAY, LetterRoom, TooFast

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_LONGEST_REASON = 1000
_FAILURE_COUNTS_S = 30.0
_BUSY_S = 0.5  # after this a command of a job that had its share may be sent again
_SLOWED_S = 5.0  # the shortest time for which the broker parks a command
_PAUSE_AFTER_FAILURE_S = 1.0  # before a message that could not be set aside comes again


class Settlement:
    """Settles deliveries. Nothing is raised where the broker is away: what is not settled comes again."""

    def __init__(self, *, consumer: CommandSource, replies: ReplySink, metrics: Metrics) -> None:
        self._consumer = consumer
        self._replies = replies
        self._metrics = metrics
        self._room = LetterRoom(clock=lambda: asyncio.get_running_loop().time())
        self._without_room: set[str | None] = set()
        self._failure: str | None = None
        self._failed_at_s = 0.0

    @property
    def obstacle(self) -> str | None:
        """Why replies could not be sent a short while ago; None: they could."""
        is_old = asyncio.get_running_loop().time() - self._failed_at_s > _FAILURE_COUNTS_S
        return None if is_old else self._failure

    async def answer(self, admitted: Sequence[Admitted], answers: Sequence[Answer]) -> None:
        """Send all replies, then acknowledge; where they cannot be sent, hand back, to be answered later.

        What is to be set aside comes last: where the broker does not take it, the others have not waited for that.
        """
        both = list(zip(admitted, answers, strict=True))
        for answer in answers:
            self._note(answer)
        decided = [(one, answer) for one, answer in both if answer.poison is None]
        deliveries = [one.delivery for one, _ in decided]
        is_sent = await self._send([reply for one, answer in decided for reply in _replies_to(one, answer)])
        if deliveries and is_sent:
            await self._consumer.ack(deliveries)
        elif deliveries:
            self._metrics.unsent_replies.inc(len(deliveries))
            await self._consumer.requeue(deliveries)
        for one, answer in both:
            if answer.poison is not None and await self._set_aside(
                one.delivery, one.sender, kind="poison", reason=f"poison: {answer.poison}"
            ):  # else it is answered when it comes again, and may then be decided
                await self._send(_replies_to(one, answer))

    async def refuse(self, refused: Undecidable) -> None:
        """Set a delivery aside that is no command, and reply to its sender with the reason."""
        if await self._set_aside_if_room(refused.delivery, refused.sender, kind=refused.kind, reason=refused.reason):
            await self._send(_replies(refused.delivery, refused.sender, refused.problem, None))

    async def decline(self, one: Admitted, *, retry_after_s: float, advice: str = "") -> None:
        """Ask the sender of a command, whose job is in trouble, to send it again later; it is done here.

        ``advice``: the reason, where the sender itself can do something about it.
        """
        what = advice or "workers try again by themselves, and an operator finds the reason with `bso doctor`"
        problem = Problem(
            type="job_in_trouble",
            title="The job is in trouble",
            detail=(
                f"commands of job {one.request.job_id} cannot be decided for now: {what}. Send the command again later"
            ),
            is_retryable=True,
            retry_after_s=retry_after_s,
        )
        await self._settle_with(one, problem)

    async def decline_busy(self, one: Admitted) -> None:
        """Ask the sender of a command, whose job has its share of this worker, to send it again; it is done here."""
        problem = Problem(
            type="job_busy",
            title="The job has too many commands under way",
            detail=f"job {one.request.job_id} holds half of what a worker takes at once. Send the command again later",
            is_retryable=True,
            retry_after_s=_BUSY_S,
        )
        await self._settle_with(one, problem)

    async def slow_down(self, fast: Sequence[tuple[Admitted, TooFast]], *, limit_s: float) -> None:
        """Have commands of logins that send too fast come later.

        Their senders send them again, or the broker keeps them, for ``limit_s`` at most. Where it cannot, they are dead
        letters.
        """
        declined = [(one, passed) for one, passed in fast if not _is_nobodys_fact(one)]
        replies = [reply for one, passed in declined for reply in _replies_of_patience(one, passed)]
        deliveries = [one.delivery for one, _ in declined]
        settle = self._consumer.ack if await self._send(replies) else self._consumer.requeue
        if deliveries:
            await settle(deliveries)
        for one, passed in fast:
            if _is_nobodys_fact(one) and (
                one.delivery.parked_s >= limit_s or not await self._park(one, pause_s=_SLOWED_S)
            ):
                reason = f"{OVER_QUOTA}: {passed.detail}"
                await self._set_aside(one.delivery, one.sender, kind=OVER_QUOTA, reason=reason)

    async def keep(self, one: Admitted, *, pause_s: float, is_copy: bool) -> bool:
        """Have the broker keep a command whose job is in trouble, and reply to its sender; False: it could not.

        A copy of what is kept already needs only the answer.
        """
        if is_copy:
            await self._consumer.ack([one.delivery])
        elif await self._park(one, pause_s=pause_s):
            self._metrics.parked_commands.inc()
        else:
            return False
        problem = Problem(
            type=KEPT,
            title="The job is in trouble, and the command is kept",
            detail=(
                f"commands of job {one.request.job_id} cannot be decided for now; this one will be, without being sent "
                "again. Its answer is given to its command_id"
            ),
            is_retryable=True,
            retry_after_s=pause_s + _PAUSE_AFTER_FAILURE_S,
        )
        await self._send(_replies(one.delivery, one.sender, problem, one.request.job_id))
        return True

    async def _park(self, one: Admitted, *, pause_s: float) -> bool:
        try:
            await self._consumer.park(one.delivery, sender=one.sender.user, pause_s=pause_s)
        except (Retryable, Misconfigured) as error:
            facts = {"command_id": one.delivery.message_id, "reason": str(error)}
            _log.warning("a command could not be parked: it stays here", action="parking_failed", **facts)
            return False
        return True

    async def give_up(self, one: Admitted, *, reason: str) -> None:
        """Set a command aside that has waited for its job for too long."""
        await self._set_aside(one.delivery, one.sender, kind="park_limit", reason=reason)

    async def _settle_with(self, one: Admitted, problem: Problem) -> None:
        if await self._send(_replies(one.delivery, one.sender, problem, one.request.job_id)):
            await self._consumer.ack([one.delivery])
        else:
            await self._consumer.requeue([one.delivery])

    async def _send(self, replies: Sequence[BrokerReply]) -> bool:
        if not replies:
            return True
        try:
            await self._replies.reply_batch(replies)
        except (Retryable, Misconfigured) as error:
            _log.warning("replies could not be sent", action="replies_unsent", replies=len(replies), reason=str(error))
            self._failure = f"replies could not be sent: {error}"
            self._failed_at_s = asyncio.get_running_loop().time()
            return False
        except Rejected as error:
            if len(replies) > 1:
                return all([await self._send([reply]) for reply in replies])
            _log.error("a reply can never be sent", action="reply_impossible", reason=str(error))
            return await self._say_so(replies[0], error)
        self._failure = None
        return True

    async def _say_so(self, reply: BrokerReply, error: Rejected) -> bool:
        """Send the waiting client a problem in place of a reply that cannot be sent."""
        problem = Problem(
            type="reply_impossible",
            title="The reply cannot be sent",
            detail=f"the command was carried out, but the broker does not take its reply: {error}",
        )
        body = encode_reply(problem, command_id=reply.correlation_id, job_id=None)
        try:
            await self._replies.reply_batch([replace(reply, body=body)])
        except (Retryable, Misconfigured):
            return False
        except Rejected:
            pass  # it is not the size: nobody can be answered
        return True

    async def _set_aside_if_room(self, delivery: Delivery, sender: Origin, *, kind: str, reason: str) -> bool:
        """The same for what is no command: where its login has no more room, it is only counted, and gone."""
        if self._room.has_room_for(delivery, sender.user):
            self._without_room.discard(sender.user)
            return await self._set_aside(delivery, sender, kind=kind, reason=reason)
        await self._consumer.ack([delivery])
        self._metrics.dead_letters.labels("not_kept").inc()
        if sender.user not in self._without_room:
            self._without_room.add(sender.user)
            _log.warning(
                "a login fills the dead letters: more of its messages are not kept",
                action="dead_letter_not_kept",
                user=sender.user,
                kept_a_day=LETTERS_A_DAY,
                reason=reason[:_LONGEST_REASON],
            )
        return True

    async def _set_aside(self, delivery: Delivery, sender: Origin, *, kind: str, reason: str) -> bool:
        """Whether it lies among the dead letters now; otherwise it comes again."""
        command_id = delivery.message_id
        try:
            await self._consumer.dead_letter(delivery, reason=reason[:_LONGEST_REASON], sender=sender.user)
        except Rejected as error:  # too large even for the dead letters: what it was is worth keeping
            shortened = replace(delivery, body=delivery.body[:_LONGEST_REASON])
            return await self._set_aside(shortened, sender, kind=kind, reason=f"{error}; shortened. {reason}")
        except (Retryable, Misconfigured) as error:
            _log.warning(
                "a command could not be set aside: it comes again",
                action="dead_letter_failed",
                command_id=command_id,
                reason=str(error),
            )
            await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            await self._consumer.requeue([delivery])
            return False
        self._metrics.dead_letters.labels(kind).inc()
        _log.warning(
            "set a command aside among the dead letters",
            action="dead_letter",
            command_id=command_id,
            user=sender.user,
            reason=reason[:_LONGEST_REASON],
        )
        return True

    def _note(self, answer: Answer) -> None:
        command_type = wire_name(type(answer.request.command))
        result = _result(answer)
        self._metrics.commands.labels(command_type, result).inc()
        facts = {"command_id": answer.request.command_id, "job_id": answer.request.job_id, "type": command_type}
        _log.debug("answered", action="answered", result=result, **facts)
        if isinstance(answer.reply, Problem) and not answer.is_repeat:
            _log.info("refused a command", action="refused", problem=answer.reply.type, **facts)
            if answer.reply.type == OVER_QUOTA and answer.request.user is not None:
                for limit in answer.reply.fields:
                    self._metrics.over_quota.labels(shown(answer.request.user), limit).inc()
        for stored in answer.events:
            needs_attention = isinstance(stored.recorded.event, AttentionNeeded)
            self._metrics.attention_needed.inc(needs_attention)
            if not isinstance(stored.recorded.event, EpochReported):
                (_log.warning if needs_attention else _log.info)(
                    "decided",
                    action=wire_name(type(stored.recorded.event)),
                    job_id=stored.recorded.job_id,
                    seq=stored.recorded.seq,
                    trial_number=getattr(stored.recorded.event, "trial_number", None),
                    reason=getattr(stored.recorded.event, "reason", None),
                )


def _is_nobodys_fact(one: Admitted) -> bool:
    """Whether a command states facts, and its sender waits for no reply: it would not send it again."""
    is_awaited = one.sender.reply_to is not None and not one.delivery.parked_s
    return isinstance(one.request.command, FACTS) and not is_awaited


def _replies_of_patience(one: Admitted, fast: TooFast) -> list[BrokerReply]:
    wait_s = max(_PAUSE_AFTER_FAILURE_S, fast.wait_s)
    problem = over_quota(fast.limit, fast.detail, retry_after_s=wait_s)
    return _replies(one.delivery, one.sender, problem, one.request.job_id)


def _replies_to(one: Admitted, answer: Answer) -> list[BrokerReply]:
    return _replies(one.delivery, one.sender, answer.reply, one.request.job_id)


def _replies(delivery: Delivery, sender: Origin, reply: Reply, job_id: str | None) -> list[BrokerReply]:
    """The reply as a message; none where nobody waits for it."""
    if sender.reply_to is None:
        return []
    command_id = delivery.correlation_id or delivery.message_id or ""
    body = encode_reply(reply, command_id=command_id, job_id=job_id)
    correlation_id = reply_id(command_id, sender.user)
    return [
        BrokerReply(
            reply_to=sender.reply_to,
            body=body,
            correlation_id=correlation_id,
            user_id=sender.user,
            may_be_bundled=delivery.is_of_bundle,
        )
    ]


def _result(answer: Answer) -> str:
    if answer.poison is not None:
        return "poison"
    if answer.is_repeat:
        return "repeated"
    return "problem" if isinstance(answer.reply, Problem) else "decided"
