"""The optimizer behind RabbitMQ."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from bso.domain.commands import EXPIRING, FACTS, Request
from bso.domain.errors import Retryable
from bso.domain.replies import Reply
from bso.schema.codec import decode_reply, encode_command
from bso_broker.connection import BrokerAddress
from bso_broker.errors import CallTimeout
from bso_broker.rpc import RpcClient
from bso_broker.topology import QUERY_KEY
from bso_client.errors import Unreachable

logger = logging.getLogger("bso")

_PAUSE_S = 1.0  # before a command is offered again to a broker that nobody has set up yet
# Trainings that have lost the broker at once come back in this time; a report waits no longer for its judgement.
_SPREAD_S = 3.0
# Between two attempts to connect: so long after an outage all are back, however long that was.
_LONGEST_PAUSE_S = 20.0


class BrokerTransport:
    """Sends commands through a broker. Reconnects by itself; a call is sent again on each new connection.

    ``bundles``: facts that are sent at the same time go out as one message; for those with many calls at once.
    """

    def __init__(self, url: str, *, bundles: bool = False) -> None:
        self._address = BrokerAddress(url=url, spread_s=_SPREAD_S, longest_pause_s=_LONGEST_PAUSE_S)
        self._caller = RpcClient(self._address)
        self._bundles = bundles

    @property
    def is_connected(self) -> bool:
        """Whether the broker is reachable now."""
        return self._caller.connected.is_set()

    @property
    def obstacle(self) -> str | None:
        """What keeps commands from being sent, as far as it is known; None: nothing."""
        return self._caller.obstacle

    async def start(self) -> None:
        """Begin to connect; calls wait for the connection."""
        if self._address.is_exposed:
            logger.debug("the connection to %s is not encrypted", self._address, extra={"action": "not_encrypted"})
        await self._caller.start()

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply to a command; Unreachable when none came in time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                return await self._once(request, timeout_s=deadline - asyncio.get_running_loop().time())
            except CallTimeout as error:
                raise Unreachable(str(error)) from error
            except Retryable as error:
                if asyncio.get_running_loop().time() + _PAUSE_S >= deadline:
                    raise Unreachable(str(error)) from error
                await asyncio.sleep(_PAUSE_S)

    async def query(self, message: bytes, *, query_id: str, timeout_s: float) -> bytes:
        """The answer to a query, as a message. Raises Unreachable when none came in time."""
        try:
            return await self._caller.call(
                message, message_id=query_id, timeout_s=timeout_s, expiration_s=timeout_s, routing_key=QUERY_KEY
            )
        except Retryable as error:
            raise Unreachable(str(error)) from error

    async def _once(self, request: Request, *, timeout_s: float) -> Reply:
        body = await self._caller.call(
            encode_command(request, sent_at=datetime.now(UTC)),
            message_id=request.command_id,
            timeout_s=timeout_s,
            expiration_s=timeout_s if isinstance(request.command, EXPIRING) else None,
            # If a bundle is handed back, its commands come again, also those that were declined.
            may_be_bundled=self._bundles and isinstance(request.command, FACTS),
        )
        return decode_reply(body)

    async def close(self) -> None:
        """Disconnect."""
        await self._caller.close()
