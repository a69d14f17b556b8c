"""Loggers whose records hold no hidden characters. A filter does it, since handlers belong to the user's program."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress

from bso.domain.foreign_text import shown, shown_lines

_INDENT = "    "


def logger_of(name: str) -> logging.Logger:
    """The logger of this name, with `show_hidden` as its filter: it does not hold for loggers below it."""
    logger = logging.getLogger(name)
    logger.addFilter(show_hidden)
    return logger


def show_hidden(record: logging.LogRecord) -> bool:
    """Show the hidden characters of a record: its message is one line, and its traceback is indented below it.

    A record that cannot be put into words stays as it is: handlers report that, and no logging call raises.
    """
    try:
        words = shown(record.getMessage())
    except Exception:  # noqa: BLE001  # whatever the text of somebody's object raises
        return True
    record.msg, record.args = words, None
    for name, value in vars(record).items():
        if isinstance(value, str) and name != "exc_text":
            setattr(record, name, shown(value))
    if record.exc_info and record.exc_info[1] is not None:
        with suppress(Exception):
            record.exc_text = indented("".join(traceback.format_exception(record.exc_info[1])))
    if record.stack_info:
        record.stack_info = indented(record.stack_info)
    return True


def indented(text: str) -> str:
    """Lines with hidden characters shown, none of which can be taken for the beginning of a record."""
    return "\n".join(f"{_INDENT}{line}".rstrip() for line in shown_lines(text).rstrip("\n").split("\n"))
