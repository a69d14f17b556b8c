"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Self

from bso_broker.dead_letters import own_headers, sender_header
from bso_broker.messages import DeadLetter, QueueCounts
from tests.fakes.memory_broker.wire import Command, Dead, Wire


class MemoryDeadLetters:
    """An operator's view of the dead letters."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def counts(self) -> QueueCounts:
        """Count the waiting commands, the dead letters, and what expired."""
        self._wire.drop_expired()
        return QueueCounts(
            commands=len(self._wire.waiting), dead_letters=len(self._wire.dead), expired=self._wire.expired
        )

    async def peek(self, *, limit: int = 100) -> tuple[DeadLetter, ...]:
        """Look at the oldest dead letters."""
        return tuple(_dead_letter(dead) for dead in self._wire.dead[:limit])

    async def requeue(self, message_ids: Container[str | None] | None = None) -> int:
        """Send dead letters to the workers again, all or those with these ids."""
        wanted = [
            dead
            for dead in self._wire.dead
            if (message_ids is None or dead.command.message_id in message_ids) and not dead.command.discarded_bytes
        ]
        self._wire.dead = [d for d in self._wire.dead if d not in wanted]
        for dead in wanted:
            self._wire.take_over(self._again(dead))
        return len(wanted)

    def _again(self, dead: Dead) -> Command:
        headers = own_headers(dead.command.headers) | sender_header(dead.sender)
        return replace(dead.command, headers=headers, user_id=self._wire.user, delivery_count=0, expires_at_s=None)

    async def purge(self) -> int:
        """Delete all dead letters."""
        count = len(self._wire.dead)
        self._wire.dead.clear()
        return count


def _dead_letter(dead: Dead) -> DeadLetter:
    return DeadLetter(
        body=dead.command.body,
        message_id=dead.command.message_id,
        user_id=dead.sender,
        reason=dead.reason,
        died_at=dead.died_at,
        headers=dead.command.headers,
        discarded_bytes=dead.command.discarded_bytes,
    )
