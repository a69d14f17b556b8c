"""Takes commands from memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bso_broker.dead_letters import own_headers, sender_header
from bso_broker.errors import BrokerUnreachable
from bso_broker.messages import Delivery, Readiness
from tests.fakes.memory_broker.wire import Command, Wire

_PARK_TIMEOUT_S = 10.0


class MemoryConsumer:
    """Takes commands from a MemoryBroker."""

    def __init__(self, wire: Wire, *, batch_limit: int) -> None:
        self._wire = wire
        self._batch_limit = batch_limit
        self._session = 0
        self._tag = 0
        self._unsettled: dict[int, Command] = {}
        self._settled = asyncio.Event()
        self._drained = False
        self._halt: str | None = "not started"
        self._ready = asyncio.Event()
        self._arrived = asyncio.Event()
        self._readiness = Readiness(ready=False, reason="not started", since_s=0.0)

    @property
    def readiness(self) -> Readiness:
        """Whether commands are being consumed right now, and if not, why."""
        return self._readiness

    async def start(self) -> None:
        """Declare the queue and consume."""
        self._halt = None
        self._wire.declared = True
        if self not in self._wire.parts:
            self._wire.parts.append(self)
            self._wire.wakers.append(self._arrived)
        self._observe()

    def _observe(self) -> None:
        ready = self._halt is None and self._wire.up.is_set()
        reason = self._halt or ("consuming" if ready else "the broker is away")
        now = asyncio.get_running_loop().time()
        since_s = self._readiness.since_s if ready == self._readiness.ready else now
        self._readiness = Readiness(ready=ready, reason=reason, since_s=since_s)
        if ready:
            self._ready.set()
        else:
            self._ready.clear()
        self._arrived.set()

    async def wait_until_ready(self) -> None:
        """Return once commands are being consumed."""
        await self._ready.wait()

    async def next_batch(self) -> tuple[Delivery, ...]:
        """Wait for commands and return what has arrived, up to the batch limit; () once drained or closed."""
        while not self._drained:
            if self._readiness.ready and (commands := self._wire.hand_out(self._batch_limit)):
                return tuple(self._handed(command) for command in commands)
            self._arrived.clear()
            await self._arrived.wait()
        return ()

    def _handed(self, command: Command) -> Delivery:
        self._tag += 1
        self._unsettled[self._tag] = command
        return Delivery(
            body=command.body,
            message_id=command.message_id,
            correlation_id=command.message_id,
            reply_to=command.reply_to,
            user_id=command.user_id,
            headers=command.headers,
            parked_s=command.parked_s,
            redelivered=command.delivery_count > 0,
            delivery_count=command.delivery_count,
            discarded_bytes=command.discarded_bytes,
            session=self._session,
            tag=self._tag,
        )

    def _settle(self, deliveries: Sequence[Delivery]) -> list[Command]:
        tags = [d.tag for d in deliveries if d.session == self._session and d.tag in self._unsettled]
        commands = [self._unsettled.pop(tag) for tag in tags]
        if not self._unsettled:
            self._settled.set()
        return commands

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """These are done."""
        self._settle(deliveries)

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        """Hand these back, to be delivered again."""
        self._wire.take_back(self._settle(deliveries))

    async def dead_letter(
        self, delivery: Delivery, *, reason: str, sender: str | None, timeout_s: float = 10.0
    ) -> None:
        """Set a command aside with the reason and whose it was, and acknowledge it."""
        await self._wire.until_up(timeout_s)
        for command in self._settle([delivery]):
            self._wire.bury(command, reason=reason, sender=sender)

    async def park(self, delivery: Delivery, *, sender: str | None, pause_s: float) -> None:
        """Let a command come back after about so long, and acknowledge it."""
        await self._wire.until_up(_PARK_TIMEOUT_S)
        for command in self._settle([delivery]):
            command.headers = own_headers(command.headers) | sender_header(sender)
            self._wire.park(command, pause_s=pause_s)

    async def pause(self, reason: str) -> None:
        """Stop consuming and hand back everything unsettled, until resume()."""
        self._halt = reason
        self._observe()
        self.connection_lost()

    async def resume(self) -> None:
        """Consume again after a pause."""
        await self.start()

    async def drain(self, *, timeout_s: float) -> bool:
        """Take no more, wait until what was taken is settled, and close; False: not all in time."""
        self._drained = True
        self._halt = "draining"
        self._observe()
        in_time = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._unsettled:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            in_time = False
        await self.close()
        return in_time

    async def close(self) -> None:
        """Disconnect at once; what is unsettled is delivered to others."""
        self._drained = True
        self._halt = "closed"
        if self in self._wire.parts:
            self._wire.parts.remove(self)
            self._wire.wakers.remove(self._arrived)
        self.connection_lost()

    async def ready_messages(self) -> int:
        """How many commands wait."""
        if not self._readiness.ready:
            raise BrokerUnreachable(f"cannot count the waiting commands: {self._readiness.reason}")
        self._wire.drop_expired()
        return len(self._wire.waiting)

    def connection_lost(self) -> None:
        """Lose what is unsettled: it goes back to the broker."""
        self._session += 1
        unsettled = list(self._unsettled.values())
        self._unsettled.clear()
        self._settled.set()
        self._wire.take_back(unsettled)
        self._observe()

    def connection_made(self) -> None:
        """Consume again."""
        self._observe()


class MemoryQueryConsumer:
    """Waits for queries, which this broker does not carry."""

    async def run(self) -> None:
        """Go on until cancelled."""
        await asyncio.Event().wait()
