"""Turns: one thing at a time, of each login in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bso_broker.errors import NoRoom


class Turns:
    """A lock that goes round the logins that wait for it: however many turns one of them wants, others wait for one.

    ``most_waiting`` of a login may wait.
    """

    def __init__(self, *, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._waiting: dict[str | None, deque[asyncio.Future[None]]] = {}  # the login whose turn is next comes first
        self._is_taken = False

    @asynccontextmanager
    async def of(self, login: str | None) -> AsyncIterator[None]:
        """Wait for a turn of this login, and have it for the time of the block. Raises NoRoom."""
        await self._wait(login)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, login: str | None) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        line = self._waiting.setdefault(login, deque())
        if len(line) >= self._most_waiting:
            raise NoRoom(f"{len(line)} of login {login} wait already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just come
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            login = next(iter(self._waiting))
            line = self._waiting.pop(login)
            turn = line.popleft()
            if line:
                self._waiting[login] = line  # behind all others
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_taken = False
