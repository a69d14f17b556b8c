"""The names of messages on the wire: the class name in snake_case, fixed for ever once released."""

from __future__ import annotations

import re
from typing import get_args

from bso.domain.commands import Command
from bso.domain.events import Event
from bso.domain.replies import Reply


def wire_name(message_type: type) -> str:
    """The name of a message class: ``BeginTrial`` is ``begin_trial``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", message_type.__name__).lower()


COMMANDS: dict[str, type] = {wire_name(member): member for member in get_args(Command)}
REPLIES: dict[str, type] = {wire_name(member): member for member in get_args(Reply)}
EVENTS: dict[str, type] = {wire_name(member): member for member in get_args(Event)}
