"""Write topology.json and logins.json, RabbitMQ's definitions, from what bso_broker knows.

``python deploy/rabbitmq/definitions.py`` after a change of bso_broker.topology; a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bso_broker.addresses import REPLY_PREFIX
from bso_broker.topology import EVENTS, Permissions, client_permissions, definitions, worker_permissions

VHOST = "bso"
LOGINS = {
    "bso-worker": ("", worker_permissions()),
    "bso-operator": ("administrator", worker_permissions()),
    "bso-training": ("", client_permissions("bso-training")),
    "bso-gateway": ("", replace(client_permissions("bso-gateway"), topic_read="^$")),  # it asks workers for events
}
"""Each login with its tags for the management page, and its permissions."""

LIMITS = {"bso-training": {"max-connections": 10_000, "max-channels": 40_000}}
"""How much a login may open at the broker: a training has one connection with two channels."""
MOST_QUEUES = 30_000
"""In the virtual host: one for each connection of a training, with room for subscribers and for reconnecting."""
REPLY_QUEUES = {"expires": 10 * 60 * 1000, "max-length": 100_000, "max-length-bytes": 100_000_000}
"""What the queues that trainings declare may hold, and how long [ms] one may be without a consumer, whatever the
trainings ask for: RabbitMQ takes the lower of an operator policy's value and theirs."""
REPLY_STREAMS = {"max-length-bytes": 100_000_000}
"""The same for streams, which know no other limit: a policy applies only to queues that know all that it says."""


def topology() -> dict[str, Any]:
    """Exchanges, queues and bindings."""
    return definitions(vhost=VHOST)


def logins() -> dict[str, Any]:
    """Users, without their passwords, what each may do, and the limits of what they may declare."""
    return {
        "users": [{"name": name, "tags": tags, "limits": LIMITS.get(name, {})} for name, (tags, _) in LOGINS.items()],
        "permissions": [_permission(name, granted) for name, (_, granted) in LOGINS.items()],
        "topic_permissions": [_topic_permission(name, granted) for name, (_, granted) in LOGINS.items()],
        "parameters": [
            _operator_policy("bso-replies", REPLY_QUEUES, priority=1),
            _operator_policy("bso-replies-in-streams", REPLY_STREAMS, priority=0),
            {"vhost": VHOST, "component": "vhost-limits", "name": "limits", "value": {"max-queues": MOST_QUEUES}},
        ],
    }


def _operator_policy(name: str, definition: Mapping[str, int], *, priority: int) -> dict[str, Any]:
    pattern = f"^{re.escape(REPLY_PREFIX)}"
    value = {"pattern": pattern, "apply-to": "queues", "definition": definition, "priority": priority}
    return {"vhost": VHOST, "component": "operator_policy", "name": name, "value": value}


def files() -> dict[Path, str]:
    """Both files with their content."""
    here = Path(__file__).parent
    return {
        here / "topology.json": json.dumps(topology(), indent=2) + "\n",
        here / "logins.json": json.dumps(logins(), indent=2) + "\n",
    }


def _permission(name: str, granted: Permissions) -> dict[str, str]:
    place = {"user": name, "vhost": VHOST}
    return {**place, "configure": granted.configure, "write": granted.write, "read": granted.read}


def _topic_permission(name: str, granted: Permissions) -> dict[str, str]:
    place = {"user": name, "vhost": VHOST, "exchange": EVENTS}
    return {**place, "write": granted.topic_write, "read": granted.topic_read}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
