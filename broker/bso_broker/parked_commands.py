"""Parked commands: while their job is in trouble they lie in queues of their own, and come back after a while.

Handing them back instead would not do: before RabbitMQ 4.3 each time counts as a failed delivery, from 4.3 on they come
back at once; and kept unsettled they would use up what the broker hands to a worker ahead.
"""

from __future__ import annotations

from collections.abc import Container

from pamqp.commands import Basic

from bso_broker.dead_letters import PARKED_HEADER, own_headers, sender_header
from bso_broker.messages import Delivery, Headers
from bso_broker.publisher import PERSISTENT, PublishingLink, field_table
from bso_broker.topology import PARKED, PARKED_FOR_S
from bso_broker.underlay import Outgoing

_TIMEOUT_S = 10.0


def parking_queue(pause_s: float) -> str:
    """The queue whose messages come back often enough for a pause: several times before its end rather than long after.

    A job may recover at any time, and its commands should not lie there for a minute then.
    """
    short, long = PARKED_FOR_S
    return long if pause_s > PARKED_FOR_S[long] / 2 else short


async def park(link: PublishingLink, delivery: Delivery, *, sender: str | None, queue: str, login: str) -> None:
    """Publish a command to a parking queue, with whose command it was. It is not acknowledged.

    Raises PublishFailed, and what else keeps the broker from taking it: it may come back all the same.
    """
    parked_s = round(delivery.parked_s) + PARKED_FOR_S[queue]
    properties = Basic.Properties(
        message_id=delivery.message_id,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        user_id=login,
        delivery_mode=PERSISTENT,
        headers=field_table(own_headers(delivery.headers) | {PARKED_HEADER: parked_s} | sender_header(sender)),
    )
    message = Outgoing(routing_key=queue, body=delivery.body, properties=properties)
    await link.publish_command(message, exchange=PARKED, timeout_s=_TIMEOUT_S)


def parked_for_s(user_id: str | None, headers: Headers, *, believed: Container[str]) -> float:
    """How long a message has been parked; 0 if never, or by a login that is not believed."""
    said = headers.get(PARKED_HEADER)
    return float(said) if user_id is not None and user_id in believed and isinstance(said, int) and said > 0 else 0.0
