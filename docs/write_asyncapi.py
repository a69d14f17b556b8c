"""Write docs/asyncapi.yaml, the description of all messages, from the classes and the topology: ``make asyncapi``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bso_broker.topology import COMMAND_KEY, COMMANDS, DEAD_LETTER_EXCHANGE, DEAD_LETTERS, EVENTS, REPLAY, TOPOLOGY
from docs.messages_described import asyncapi

FILE = Path(__file__).parent / "asyncapi.yaml"
_HEAD = "# Made by `make asyncapi` from bso.schema and bso_broker.topology; a test compares.\n"

_EVENT_KEY = {
    "event_type": {"description": "The name of the message, for example trial_ended."},
    "job_id": {"description": "The job_id with its dots percent-encoded; its SHA-256 if too long."},
}


def document() -> dict[str, Any]:
    """The AsyncAPI document of messages, channels and the broker they are on."""
    made = asyncapi(_channels())
    servers = {
        "rabbitmq": {
            "host": "127.0.0.1:5672",
            "pathname": "/bso",
            "protocol": "amqp",
            "protocolVersion": "0.9.1",
            "description": "RabbitMQ 3.10 or newer, better 4.",
            "security": [{"type": "userPassword", "description": "One login per group of jobs."}],
        }
    }
    return {"asyncapi": made.pop("asyncapi"), "info": made.pop("info"), "servers": servers, **made}


def text() -> str:
    """The document as it is checked in."""
    return _HEAD + yaml.dump(document(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _channels() -> dict[str, Any]:
    return {
        "commands": _commands(),
        "replies": _replies(),
        "events": _events(),
        "replay": _replay(),
        "dead_letters": _dead_letters(),
    }


def _commands() -> dict[str, Any]:
    return {
        "address": COMMAND_KEY,
        "title": "Commands",
        "description": (
            "To the workers, through the queue bso.inbox. Publish mandatory and with confirms; "
            "set message_id to the command_id, reply_to to a queue of your own, and user_id to your login. Only "
            "begin_trial and describe_job may have an expiration. Send the same message again when no reply comes."
        ),
        "bindings": _by_key(COMMANDS),
    }


def _replies() -> dict[str, Any]:
    return {
        "address": "bso.reply.{user}.{connection}",
        "title": "Replies",
        "description": "To the sender's exclusive queue, through the default exchange; correlation_id is yours.",
        "parameters": {
            "user": {"description": "The login, percent-encoded, dots included."},
            "connection": {"description": "32 hexadecimal digits, new for each connection."},
        },
        "bindings": _by_queue({"durable": False, "exclusive": True, "autoDelete": True}),
    }


def _events() -> dict[str, Any]:
    return {
        "address": "{event_type}.{job_id}",
        "title": "Events",
        "description": (
            "What has happened to jobs, from the log; also kept for 30 days in the stream bso.event-log. Bind a "
            "queue of your own, named bso.reply.<user>.events.<anything>."
        ),
        "parameters": _EVENT_KEY,
        "bindings": _by_key(EVENTS),
    }


def _replay() -> dict[str, Any]:
    return {
        "address": "{event_type}.{job_id}",
        "title": "Replay",
        "description": (
            "Recorded events again, as `bso replay publish` sends them: the same keys and bodies on an exchange of "
            "its own, so that nobody takes them for news. Bind a queue before; what nobody listens to is gone."
        ),
        "parameters": _EVENT_KEY,
        "bindings": _by_key(REPLAY),
    }


def _dead_letters() -> dict[str, Any]:
    return {
        "address": DEAD_LETTERS,
        "title": "Dead letters",
        "description": f"What no worker could handle, by way of the exchange {DEAD_LETTER_EXCHANGE}.",
        "bindings": _by_queue({"name": DEAD_LETTERS, "durable": True, "exclusive": False, "autoDelete": False}),
    }


def _by_key(exchange: str) -> Mapping[str, Any]:
    kinds = {one.name: one.type for one in TOPOLOGY.exchanges}
    declared = {"name": exchange, "type": kinds[exchange], "durable": True, "autoDelete": False}
    return {"amqp": {"is": "routingKey", "exchange": declared, "bindingVersion": "0.3.0"}}


def _by_queue(declared: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"amqp": {"is": "queue", "queue": declared, "bindingVersion": "0.3.0"}}


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
