"""The exchanges and queues of bso: as data, as declarations, and as a definitions file for RabbitMQ.

::

    bso.commands (direct) --> bso.queries
    bso.commands (direct) --> bso.inbox (quorum, or classic) --dead--> bso.dead-letter (headers)
        ^                                                    |
        '--- after 5 s or 60 s --- two quorum queues         |
        bso.parked (direct) ------------^                    |
                                                             |-- expired --> bso.expired (for counting)
                                                             '-- all else -> bso.dead-letters (fanout, quorum)
    bso.events (topic) -----> bso.event-log (stream), and the queues of subscribers
    bso.replay (topic) -----> the queues of subscribers of recorded events; live trainings never listen there
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bso_broker.addresses import REPLY_PREFIX, encode_word

COMMANDS = "bso.commands"
"""The exchange that commands are sent to. Its queue has another name: a login that may write here may not bind it."""
COMMAND_QUEUE = "bso.inbox"
FORMER_COMMAND_QUEUE = "bso.commands"
"""What the queue was called when it had the name of its exchange."""
COMMAND_KEY = "command"
QUERY_QUEUE = "bso.queries"
QUERY_KEY = "query"
EVENTS = "bso.events"
REPLAY = "bso.replay"
EVENT_LOG = "bso.event-log"
PARKED = "bso.parked"
PARKED_FOR_S = {"bso.parked.short": 5, "bso.parked.long": 60}
"""The queues of commands that wait for their job to recover, each with how long they stay there; bound by name."""
DEAD_LETTER_EXCHANGE = "bso.dead-letter"
DEAD_LETTERS = "bso.dead-letters"
EXPIRED = "bso.expired"

QUORUM, CLASSIC = "quorum", "classic"
DELIVERY_LIMIT = 20  # RabbitMQ 4's default, stated so that RabbitMQ 3 does the same
_NO_DELIVERY_LIMIT = 1_000_000  # looking at dead letters counts as a delivery; RabbitMQ 3 does not know -1
_MOST_PARKED, _MOST_PARKED_BYTES = 100_000, 1_000_000_000  # in each queue; beyond that, workers keep commands
_MOST_DEAD, _MOST_DEAD_BYTES = 100_000, 1_000_000_000  # beyond that the oldest go: workers must get rid of what comes
_DAY_MS = 24 * 60 * 60 * 1000

Arguments = Mapping[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A durable exchange."""

    name: str
    type: str
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A durable queue."""

    name: str
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """From an exchange to a queue."""

    source: str
    destination: str
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Everything that has to exist before bso can talk; exchanges in an order in which they can be declared."""

    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]


def _parked_queue(name: str) -> Queue:
    return Queue(
        name=name,
        arguments={
            "x-queue-type": "quorum",
            "x-message-ttl": PARKED_FOR_S[name] * 1000,
            "x-dead-letter-exchange": COMMANDS,
            "x-dead-letter-routing-key": COMMAND_KEY,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-max-length": _MOST_PARKED,
            "x-max-length-bytes": _MOST_PARKED_BYTES,
        },
    )


_COMMAND_QUEUES = {
    QUORUM: Queue(
        name=COMMAND_QUEUE,
        arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": DELIVERY_LIMIT,
            "x-dead-letter-exchange": DEAD_LETTER_EXCHANGE,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",  # at-least-once demands it; bound the length by policy
        },
    ),
    CLASSIC: Queue(
        name=COMMAND_QUEUE,
        arguments={
            "x-queue-type": "classic",
            "x-dead-letter-exchange": DEAD_LETTER_EXCHANGE,
            "x-overflow": "reject-publish",
        },
    ),
}
"""By type. A classic queue counts no deliveries, and moves what has expired at most once."""

TOPOLOGY = Topology(
    exchanges=(
        Exchange(name=COMMANDS, type="direct"),
        Exchange(name=EVENTS, type="topic"),
        Exchange(name=REPLAY, type="topic"),
        Exchange(name=PARKED, type="direct"),
        Exchange(name=DEAD_LETTERS, type="fanout"),
        # What did not expire matches no binding and goes on to the alternate exchange: no reason of death is forgotten.
        Exchange(name=DEAD_LETTER_EXCHANGE, type="headers", arguments={"alternate-exchange": DEAD_LETTERS}),
    ),
    queues=(
        _COMMAND_QUEUES[QUORUM],
        Queue(
            name=QUERY_QUEUE,
            arguments={
                "x-queue-type": "classic",
                "x-message-ttl": 60_000,
                "x-max-length": 10_000,
                "x-overflow": "reject-publish",
            },
        ),
        *map(_parked_queue, PARKED_FOR_S),
        Queue(
            name=DEAD_LETTERS,
            arguments={
                "x-queue-type": "quorum",
                "x-delivery-limit": _NO_DELIVERY_LIMIT,
                "x-overflow": "drop-head",
                "x-max-length": _MOST_DEAD,
                "x-max-length-bytes": _MOST_DEAD_BYTES,
            },
        ),
        Queue(
            name=EXPIRED,
            arguments={"x-queue-type": "classic", "x-message-ttl": _DAY_MS, "x-max-length": 100_000},
        ),
        Queue(
            name=EVENT_LOG,
            arguments={"x-queue-type": "stream", "x-max-age": "30D", "x-max-length-bytes": 10_000_000_000},
        ),
    ),
    bindings=(
        Binding(source=COMMANDS, destination=COMMAND_QUEUE, routing_key=COMMAND_KEY),
        Binding(source=COMMANDS, destination=QUERY_QUEUE, routing_key=QUERY_KEY),
        *(Binding(source=PARKED, destination=name, routing_key=name) for name in PARKED_FOR_S),
        Binding(source=EVENTS, destination=EVENT_LOG, routing_key="#"),
        Binding(source=DEAD_LETTERS, destination=DEAD_LETTERS),
        Binding(
            source=DEAD_LETTER_EXCHANGE,
            destination=EXPIRED,
            # A command that was parked has expired there first; what it dies of later is no expiry.
            arguments={
                "x-match": "all-with-x",
                "x-first-death-reason": "expired",
                "x-first-death-queue": COMMAND_QUEUE,
            },
        ),
    ),
)


def topology(command_queue: str = QUORUM) -> Topology:
    """TOPOLOGY with a queue of this type for commands: QUORUM or CLASSIC."""
    return replace(TOPOLOGY, queues=(_COMMAND_QUEUES[command_queue], *TOPOLOGY.queues[1:]))


def definitions(*, vhost: str = "/", command_queue: str = QUORUM) -> dict[str, list[dict[str, object]]]:
    """The topology as RabbitMQ's ``definitions.json`` for one virtual host (rabbitmqctl import_definitions)."""
    place: dict[str, object] = {"vhost": vhost}
    kept: dict[str, object] = place | {"durable": True, "auto_delete": False}
    declared = topology(command_queue)
    return {
        "vhosts": [{"name": vhost}],
        "exchanges": [
            {"name": e.name, "type": e.type, "internal": False, "arguments": dict(e.arguments)} | kept
            for e in declared.exchanges
        ],
        "queues": [{"name": q.name, "arguments": dict(q.arguments)} | kept for q in declared.queues],
        "bindings": [
            {
                "source": b.source,
                "destination": b.destination,
                "destination_type": "queue",
                "routing_key": b.routing_key,
                "arguments": dict(b.arguments),
            }
            | place
            for b in declared.bindings
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Regular expressions for ``rabbitmqctl set_permissions`` and, on bso.events, ``set_topic_permissions``."""

    configure: str
    write: str
    read: str
    topic_write: str = "^$"
    topic_read: str = ".*"


def client_permissions(user: str, *, job_id_prefix: str = "") -> Permissions:
    """What a training job's login needs: its own reply queues, sending commands, and events of its jobs."""
    own = f"^{re.escape(REPLY_PREFIX + encode_word(user))}\\..*$"
    return Permissions(
        configure=own,
        write=f"{own}|^{re.escape(COMMANDS)}$",
        read=f"{own}|^{re.escape(EVENTS)}$",
        topic_read=f"^[^.]+\\.{re.escape(encode_word(job_id_prefix))}.*$",
    )


def worker_permissions() -> Permissions:
    """What a worker's login needs: everything of bso, and the default exchange for replies."""
    return Permissions(configure="^bso\\..*$", write="^(bso\\..*|amq\\.default)$", read="^bso\\..*$", topic_write=".*")
