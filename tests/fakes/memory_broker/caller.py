"""Calls through memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from bso_broker.addresses import new_reply_queue
from bso_broker.errors import BrokerClosed, CallTimeout, NoCommandQueue
from bso_broker.messages import check_size
from tests.fakes.memory_broker.wire import Command, Wire


class MemoryRpcClient:
    """Calls the workers behind a MemoryBroker."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._address = ""
        self._pending: dict[str, tuple[Command, asyncio.Future[bytes]]] = {}
        self.connected = asyncio.Event()
        self._closed = True

    async def start(self) -> None:
        """Connect, or wait for the broker to come back."""
        self._closed = False
        self._address = new_reply_queue(self._wire.user)
        self._wire.mailboxes[self._address] = self
        self._wire.parts.append(self)
        if self._wire.up.is_set():
            self.connected.set()

    async def close(self) -> None:
        """Disconnect; pending calls raise BrokerClosed."""
        self._closed = True
        self.connected.clear()
        self._wire.mailboxes.pop(self._address, None)
        if self in self._wire.parts:
            self._wire.parts.remove(self)
        for _, reply in self._pending.values():
            if not reply.done():
                reply.set_exception(BrokerClosed("the broker client is closed"))

    async def call(self, body: bytes, *, message_id: str, timeout_s: float, expiration_s: float | None = None) -> bytes:
        """Send a command and return the reply; CallTimeout, NoCommandQueue, BrokerClosed."""
        if self._closed:
            raise BrokerClosed("the broker client is not started, or closed already")
        if message_id in self._pending:
            raise ValueError(f"a call with message_id {message_id} is under way already")
        check_size(body)
        loop = asyncio.get_running_loop()
        command = Command(
            body=body,
            message_id=message_id,
            reply_to=self._address,
            user_id=self._wire.user,
            expires_at_s=None if expiration_s is None else loop.time() + expiration_s,
        )
        self._pending[message_id] = (command, loop.create_future())
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send(command)
        except TimeoutError as error:
            raise CallTimeout(f"no reply within {timeout_s:.3g} s") from error
        finally:
            del self._pending[message_id]

    async def _send(self, command: Command) -> bytes:
        if self._wire.up.is_set():
            self._wire.take_over(command)
        return await self._pending[command.message_id or ""][1]

    def deliver(self, correlation_id: str, body: bytes) -> None:
        """Hand a reply to the call that waits for it, if there is one."""
        _, reply = self._pending.get(correlation_id, (None, None))
        if reply is not None and not reply.done():
            reply.set_result(body)

    def connection_lost(self) -> None:
        """Lose the reply queue."""
        self.connected.clear()

    def connection_made(self) -> None:
        """Send everything pending again, with a new reply queue."""
        del self._wire.mailboxes[self._address]
        self._address = new_reply_queue(self._wire.user)
        self._wire.mailboxes[self._address] = self
        self.connected.set()
        for command, reply in self._pending.values():
            try:
                self._wire.take_over(replace(command, reply_to=self._address, delivery_count=0))
            except NoCommandQueue as error:
                reply.set_exception(error)
