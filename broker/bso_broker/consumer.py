"""Consume commands in batches of whatever has arrived, and settle them after the work is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

from bso.log_records import logger_of
from bso_broker.connection import BrokerAddress, is_lost, suppress_loss
from bso_broker.consumer_session import ConsumerSession
from bso_broker.dead_letters import set_aside
from bso_broker.errors import BrokerUnreachable, ConnectionLost
from bso_broker.messages import Delivery, Readiness
from bso_broker.parked_commands import park, parking_queue
from bso_broker.publisher import PublishingLink
from bso_broker.session import Link

logger = logger_of(__name__)

_SETTLE_TIMEOUT_S = 5.0
_MANY, _ENOUGH = 16, 64  # commands that have arrived at once: more are then on their way, or need not be waited for
_GATHERING_S = 0.001


class CommandConsumer:
    """Takes commands from the queue, for as long as it is neither paused nor drained.

    Deliveries stay the broker's until they are settled: whatever a lost connection, a pause or a crash leaves
    unsettled is delivered again. Settling on a connection that is gone does nothing, for the same reason.
    """

    def __init__(
        self,
        address: BrokerAddress,
        publishing: PublishingLink,
        *,
        operators: Collection[str] = (),
        batch_limit: int = 32,
        prefetch: int = 128,
    ) -> None:
        self._publishing = publishing
        self._login = address.login
        self._batch_limit = batch_limit
        self._sessions = 0
        self._arrived = asyncio.Event()
        self._drained = False
        self._turn = asyncio.Lock()  # a pause takes a while: who resumes meanwhile waits for its end
        self._halt: str | None = "not started"
        self._readiness = Readiness(ready=False, reason="not started", since_s=0.0)

        def new_session() -> ConsumerSession:
            self._sessions += 1
            return ConsumerSession(
                address,
                number=self._sessions,
                believed=frozenset({address.login, *operators}),
                prefetch=prefetch,
                wake=self._arrived.set,
                announce=self._link.announce,
            )

        self._link = Link(new_session, name="command consumer")
        self._link.on_change = self._observe

    @property
    def readiness(self) -> Readiness:
        """Whether commands are being consumed and find what they need on the broker, and if not, why."""
        return self._readiness

    async def wait_until_ready(self) -> None:
        """Return once commands are being consumed; without a deadline of its own."""
        while not self._readiness.ready:
            await self._link.changed()

    def _observe(self) -> None:
        session = self._link.current
        self._arrived.set()  # commands may have come while the session was being opened
        obstacle = session.obstacle if session is not None else self._link.last_error or "connecting"
        ready = self._halt is None and obstacle is None
        reason = self._halt or str(obstacle or "consuming")
        before = self._readiness
        if (ready, reason) != (before.ready, before.reason):
            since_s = before.since_s if ready == before.ready else asyncio.get_running_loop().time()
            self._readiness = Readiness(ready=ready, reason=reason, since_s=since_s)

    async def start(self) -> None:
        """Begin connecting and consuming in the background."""
        self._halt = None
        self._link.start()
        self._observe()

    async def next_batch(self) -> tuple[Delivery, ...]:
        """Wait for commands and return what has arrived, up to the batch limit; () once drained or closed.

        Where many have arrived, more are given a moment to arrive: a larger batch costs less CPU per command.
        """
        has_gathered = False
        while not self._drained:
            session = self._link.current
            arrived = 0 if session is None else session.arrived
            if not has_gathered and _MANY <= arrived < min(_ENOUGH, self._batch_limit):
                has_gathered = True
                await asyncio.sleep(_GATHERING_S)
                continue
            if session is not None and (batch := session.take(self._batch_limit)):
                return batch
            self._arrived.clear()
            await self._arrived.wait()
        return ()

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the broker that these are done."""
        await self._settle(deliveries, ConsumerSession.ack)

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        """Hand these back, to be delivered again; each time may count towards the delivery limit."""
        await self._settle(deliveries, ConsumerSession.requeue)

    async def dead_letter(
        self, delivery: Delivery, *, reason: str, sender: str | None, timeout_s: float = 10.0
    ) -> None:
        """Set a command of ``sender`` aside among the dead letters, with the reason, and acknowledge it.

        PublishFailed when the broker does not take it over in time: the command stays unsettled.
        """
        await set_aside(self._publishing, delivery, reason=reason, sender=sender, timeout_s=timeout_s)
        await self.ack([delivery])

    async def park(self, delivery: Delivery, *, sender: str | None, pause_s: float) -> None:
        """Let a command of ``sender`` come back after about so long [s], and acknowledge it.

        PublishFailed, TopologyMissing: the broker does not take it over, and it stays unsettled.
        """
        queue = parking_queue(pause_s)
        await park(self._publishing, delivery, sender=sender, queue=queue, login=self._login)
        await self.ack([delivery])

    async def _settle(
        self,
        deliveries: Sequence[Delivery],
        settle: Callable[[ConsumerSession, Sequence[Delivery]], Awaitable[None]],
    ) -> None:
        session = self._link.current
        number = 0 if session is None else session.number
        living = [delivery for delivery in deliveries if delivery.session == number]
        if len(living) < len(deliveries):
            self._log_too_late(len(deliveries) - len(living))
        if session is None or not living:
            return
        try:
            async with asyncio.timeout(_SETTLE_TIMEOUT_S):
                await settle(session, living)
        except TimeoutError:
            session.fail(ConnectionLost("the broker reads nothing any more"))
            self._log_too_late(len(living))
        except BaseException as error:
            if not is_lost(error):
                raise
            self._log_too_late(len(living))

    def _log_too_late(self, count: int) -> None:
        logger.info("%d settled commands will be delivered again", count, extra={"action": "settled_too_late"})

    async def pause(self, reason: str) -> None:
        """Stop consuming and hand back everything unsettled, until resume()."""
        self._halt = reason
        self._observe()
        async with self._turn:
            if (session := self._link.current) is not None:
                with suppress_loss():
                    async with asyncio.timeout(_SETTLE_TIMEOUT_S):
                        await session.hand_back()
            await self._link.stop()

    async def resume(self) -> None:
        """Consume again after a pause, also one that is still under way."""
        async with self._turn:
            await self.start()

    async def drain(self, *, timeout_s: float) -> bool:
        """Take no more, let next_batch() return (), and wait until what was taken is settled; False: not in time.

        What has arrived but was not taken is handed back at once, the rest when time is up. It ends with close().
        """
        self._drained = True
        self._halt = "draining"
        self._observe()
        self._arrived.set()
        in_time = True
        if (session := self._link.current) is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    with suppress_loss():
                        await session.stop_consuming()
                    await session.settled.wait()
            except TimeoutError:
                in_time = False
        await self.close()
        return in_time

    async def close(self) -> None:
        """Disconnect at once; the broker delivers what is unsettled to others."""
        self._drained = True
        self._halt = "closed"
        self._arrived.set()
        await self._link.stop()
        self._observe()

    async def ready_messages(self) -> int:
        """How many messages wait in the queue, not counting those already handed to a worker."""
        if (session := self._link.current) is None:
            raise BrokerUnreachable(f"cannot count the waiting commands: {self._readiness.reason}")
        return await session.ready_messages()
