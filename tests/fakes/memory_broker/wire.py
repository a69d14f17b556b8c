"""What a broker in memory holds: the queue of commands, the dead letters, and who is connected."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from bso.schema.envelope import MAX_MESSAGE_BYTES
from bso_broker.dead_letters import named_sender
from bso_broker.errors import NoCommandQueue, PublishFailed
from bso_broker.messages import Event, Headers
from bso_broker.parked_commands import parking_queue
from bso_broker.topology import DELIVERY_LIMIT, PARKED_FOR_S


@dataclass(kw_only=True, eq=False)
class Command:
    """A command on its way; compared by identity."""

    body: bytes
    message_id: str | None
    reply_to: str | None
    user_id: str | None
    expires_at_s: float | None
    headers: Headers = field(default_factory=dict)
    delivery_count: int = 0
    parked_s: float = 0.0
    discarded_bytes: int = 0  # how large its body was, if workers do not read it


@dataclass(frozen=True, kw_only=True)
class Dead:
    """A command among the dead letters."""

    command: Command
    reason: str
    sender: str | None
    died_at: datetime


class Part(Protocol):
    """Something connected."""

    def connection_lost(self) -> None:
        """The broker went away."""
        ...

    def connection_made(self) -> None:
        """The broker came back."""
        ...


class Mailbox(Protocol):
    """Where replies arrive."""

    def deliver(self, correlation_id: str, body: bytes) -> None:
        """Hand over a reply."""
        ...


class Hearer(Protocol):
    """A receiver of events."""

    def hear(self, event: Event) -> None:
        """Hand over an event."""
        ...


class Wire:
    """What everything made by one MemoryBroker shares."""

    def __init__(self, *, user: str, operators: Collection[str]) -> None:
        self.user = user
        self.operators = frozenset({user, *operators})
        self.declared = False
        self.up = asyncio.Event()
        self.up.set()
        self.waiting: deque[Command] = deque()
        self.dead: list[Dead] = []
        self.expired = 0
        self.parts: list[Part] = []
        self.mailboxes: dict[str, Mailbox] = {}
        self.hearers: list[Hearer] = []
        self.replay_hearers: list[Hearer] = []
        self.wakers: list[asyncio.Event] = []

    def take_over(self, command: Command) -> None:
        """Accept a command."""
        if not self.declared:
            raise NoCommandQueue("nothing takes commands yet: start a consumer, or declare()")
        size = len(command.body)
        is_readable = size <= MAX_MESSAGE_BYTES
        self.waiting.append(command if is_readable else replace(command, body=b"", discarded_bytes=size))
        self.wake_consumers()

    def hand_out(self, limit: int) -> list[Command]:
        """Take commands off the queue, the oldest first."""
        self.drop_expired()
        return [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]

    def take_back(self, commands: Sequence[Command]) -> None:
        """Put unsettled commands back where they were, or among the dead letters after too many deliveries."""
        for command in reversed(commands):
            if command.delivery_count >= DELIVERY_LIMIT:
                self.bury(
                    command,
                    reason="delivery_limit",
                    sender=named_sender(command.user_id, command.headers, self.operators),
                )
            else:
                command.delivery_count += 1
                self.waiting.appendleft(command)
        self.wake_consumers()

    def bury(self, command: Command, *, reason: str, sender: str | None) -> None:
        """Add to the dead letters."""
        self.dead.append(Dead(command=command, reason=reason, sender=sender, died_at=datetime.now(UTC)))

    def park(self, command: Command, *, pause_s: float) -> None:
        """Let a command wait once more, after a while."""
        stays_s = PARKED_FOR_S[parking_queue(pause_s)]
        command.expires_at_s, command.delivery_count = None, 0
        command.parked_s += stays_s
        asyncio.get_running_loop().call_later(stays_s, self.take_over, command)

    def drop_expired(self) -> None:
        """Drop what nobody took in time, and count it."""
        now = asyncio.get_running_loop().time()
        alive = [c for c in self.waiting if c.expires_at_s is None or c.expires_at_s > now]
        self.expired += len(self.waiting) - len(alive)
        self.waiting = deque(alive)

    def wake_consumers(self) -> None:
        """Let consumers look at the queue."""
        for waker in self.wakers:
            waker.set()

    async def until_up(self, timeout_s: float) -> None:
        """Wait for the broker; PublishFailed after the deadline."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.up.wait()
        except TimeoutError as error:
            raise PublishFailed(f"the broker was away for {timeout_s:g} s") from error
