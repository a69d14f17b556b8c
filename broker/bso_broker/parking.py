"""Parking commands whose job is in trouble: they lie in queues of their own, and come back after a while.

Handing them back instead would not do: before RabbitMQ 4.3 each time counts as a failed delivery, from 4.3 on they come
back at once; and kept unsettled they would use up what the broker hands to a worker ahead.
"""

from __future__ import annotations

import asyncio

from pamqp.commands import Basic

from bso_broker.dead_letters import SENDER_HEADER, own_headers
from bso_broker.errors import ConnectionLost, PublishFailed, TopologyMissing
from bso_broker.messages import Delivery, Headers
from bso_broker.publisher import PublishingLink, field_table
from bso_broker.session import publish_confirmed
from bso_broker.topology import PARKED, PARKED_FOR_S

PARKED_HEADER = "bso-parked-s"
_PERSISTENT = 2
_TIMEOUT_S = 10.0


def parking_queue(pause_s: float) -> str:
    """The queue whose messages come back nearest to the end of a pause: not long before it."""
    return next((name for name, stays_s in PARKED_FOR_S.items() if stays_s >= pause_s), list(PARKED_FOR_S)[-1])


async def park(link: PublishingLink, delivery: Delivery, *, sender: str | None, queue: str, login: str) -> None:
    """Publish a command to a parking queue, with whose command it was. It is not acknowledged.

    Raises PublishFailed, and what else keeps the broker from taking it: it may come back all the same.
    """
    named = {} if sender is None else {SENDER_HEADER: sender}
    parked_s = round(delivery.parked_s) + PARKED_FOR_S[queue]
    properties = Basic.Properties(
        message_id=delivery.message_id,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        user_id=login,
        delivery_mode=_PERSISTENT,
        headers=field_table(_without_mark(own_headers(delivery.headers)) | {PARKED_HEADER: parked_s} | named),
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            session = await link.session()
            await publish_confirmed(
                session,
                session.confirmed,
                delivery.body,
                exchange=PARKED,
                routing_key=queue,
                properties=properties,
                mandatory=True,
            )
    except TopologyMissing as error:
        if (living := link.current) is not None:
            living.fail(error)  # the next session declares what somebody has deleted
        raise
    except (TimeoutError, ConnectionLost) as error:
        raise PublishFailed(f"command {delivery.message_id} could not be parked: {error}") from error


def parked_for_s(user_id: str | None, headers: Headers, *, login: str) -> float:
    """How long a message has been parked; 0 if never. Only the workers' own login is believed."""
    said = headers.get(PARKED_HEADER)
    return float(said) if user_id == login and isinstance(said, int) and said > 0 else 0.0


def _without_mark(headers: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in headers.items() if name != PARKED_HEADER}
