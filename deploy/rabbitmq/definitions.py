"""Write topology.json and logins.json, RabbitMQ's definitions, from what bso_broker knows.

``python deploy/rabbitmq/definitions.py`` after a change of bso_broker.topology; a test compares.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bso_broker.topology import EVENTS, Permissions, client_permissions, definitions, worker_permissions

VHOST = "bso"
LOGINS = {
    "bso-worker": ("", worker_permissions()),
    "bso-operator": ("administrator", worker_permissions()),
    "bso-training": ("", client_permissions("bso-training")),
}
"""Each login with its tags for the management page, and its permissions."""


def topology() -> dict[str, Any]:
    """Exchanges, queues and bindings."""
    return definitions(vhost=VHOST)


def logins() -> dict[str, Any]:
    """Users, without their passwords, and what each may do."""
    return {
        "users": [{"name": name, "tags": tags} for name, (tags, _) in LOGINS.items()],
        "permissions": [_permission(name, granted) for name, (_, granted) in LOGINS.items()],
        "topic_permissions": [_topic_permission(name, granted) for name, (_, granted) in LOGINS.items()],
    }


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
