"""Who receives a job's live events: a topic permission of the broker, which only its administrator can change.

A login has one pattern for all jobs whose events it receives, and every event where it has none. Only the broker knows
the pattern: which team a login belongs to, and what else it was permitted, is not known here.
"""

from __future__ import annotations

import json
import re
import shlex

from bso_cli.terminal import print_command, print_notice


def print_opening(login: str, job_id: str, *, broker: str) -> None:
    """Print how a login comes to receive a job's live events, beside those that it receives already."""
    print_notice(
        f"Login {login} receives live events by a permission of the broker, all of them where it has none. There an "
        f"administrator adds job {job_id} to those that it receives already:"
    )
    print_command(_adding(login, job_id, broker=broker))


def print_closing(login: str, job_id: str, *, broker: str) -> None:
    """Print how a login ceases to receive a job's live events."""
    print_notice(
        f"Login {login} goes on receiving live events. Where it should not, an administrator of the broker takes job "
        f"{job_id} out of its permission, which the first line shows and the second one sets (PATTERN: what remains), "
        "and closes its connections:"
    )
    print_command(f"rabbitmqctl list_user_topic_permissions {shlex.quote(login)}")
    print_command(f"{_setting(login, broker=broker)} 'PATTERN'")
    print_command(f"rabbitmqctl close_all_user_connections {shlex.quote(login)} 'rights have changed'")


def _adding(login: str, job_id: str, *, broker: str) -> str:
    """A shell's line that sets the pattern that is found, if any, with the job's joined to it."""
    from bso_broker.addresses import encode_word
    from bso_broker.connection import vhost_of
    from bso_broker.topology import EVENTS

    field = f"$1 == {json.dumps(vhost_of(broker))} && $2 == {json.dumps(EVENTS)} {{print $4}}"
    listing = f"rabbitmqctl -q list_user_topic_permissions {shlex.quote(login)}"
    added = shlex.quote(rf"^[^.]+\.{re.escape(encode_word(job_id))}$")
    setting = _setting(login, broker=broker)
    return (
        f'present=$({listing} | awk -F\'\\t\' {shlex.quote(field)}); [ -z "$present" ] || {setting} "$present|"{added}'
    )


def _setting(login: str, *, broker: str) -> str:
    """The command that sets a login's pattern, but for the pattern itself."""
    from bso_broker.connection import vhost_of
    from bso_broker.topology import EVENTS

    place = f"-p {shlex.quote(vhost_of(broker))} {shlex.quote(login)} {EVENTS}"
    return f"rabbitmqctl set_topic_permissions {place} '^$'"
