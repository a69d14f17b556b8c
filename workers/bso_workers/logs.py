"""Logs: one line per fact, as JSON or for people. Hidden characters are shown, in records of libraries, too."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from typing import TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from bso.domain.foreign_text import is_plain, shown
from bso.log_records import indented
from bso_workers.settings import LogFormat, LogLevel, misspelt

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_NOISY = {"aio_pika": logging.ERROR, "aiormq": logging.ERROR, "aiohttp": logging.WARNING, "asyncio": logging.WARNING}
_CLOSED_BY_BROKER = "Unexpected connection close from remote"
_NOBODYS_FAULT = (  # how the broker's reason begins
    "CONNECTION_FORCED",  # it is shut down, or an operator closes the connection
    "CHANNEL_ERROR - expected 'channel.open'",  # it has closed a channel, which aiormq was still publishing on
)
_FIRST = ("timestamp", "level", "logger", "action", "message")
_FACTS: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def warn_of_misspelt(environ: Mapping[str, str], names: Collection[str]) -> None:
    """Log a warning for each variable that is no setting, and looks as if it was to be one of these names."""
    for name, meant in misspelt(environ, names).items():
        _log.warning(f"{name} is no setting: {meant} is", action="unknown_setting", variable=name, meant=meant)


def configure_logs(*, level: LogLevel, style: LogFormat, stream: TextIO) -> None:
    """Send what this program and its libraries log to one stream, in one form: each line has the same first keys."""
    number = logging.getLevelNamesMapping()[level.upper()]
    is_json = style == "json" or (style == "auto" and not stream.isatty())
    structlog.configure(
        processors=[*_FACTS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(_show_as_it_is)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_FACTS, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_as_json() if is_json else _for_people(has_colors=_draws_colors(stream))),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name, least in _NOISY.items():
        logging.getLogger(name).setLevel(max(number, least))


def _draws_colors(stream: TextIO) -> bool:
    """Whether a stream is a terminal with colours whose user wants them (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _show_as_it_is(record: logging.LogRecord) -> bool:
    """A connection that broke, and is made again, is no more than a warning."""
    reasons = [each for each in record.args or () if isinstance(each, str) and each.startswith(_NOBODYS_FAULT)]
    if str(record.msg).startswith(_CLOSED_BY_BROKER) and reasons:
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _as_json() -> tuple[Processor, ...]:
    return (
        structlog.processors.ExceptionRenderer(),
        structlog.processors.EventRenamer("message"),
        _in_order,
        structlog.processors.JSONRenderer(),  # in ASCII, so that nothing hidden is left
    )


def _in_order(_logger: WrappedLogger, _name: str, facts: EventDict) -> EventDict:
    """The same keys first on each line, in the same order; a line of a library has no action."""
    return {name: facts.get(name) for name in _FIRST} | dict(facts)


def _for_people(*, has_colors: bool) -> tuple[Processor, ...]:
    return (
        structlog.processors.ExceptionRenderer(),  # without the values of variables: passwords may be among them
        _shown,
        structlog.dev.ConsoleRenderer(colors=has_colors, exception_formatter=structlog.dev.plain_traceback),
    )


def _shown(_logger: WrappedLogger, _name: str, facts: EventDict) -> EventDict:
    """Facts with hidden characters shown; the lines of a traceback are indented, so that none looks like a record."""
    made: EventDict = {}
    for name, value in facts.items():
        if name in ("exception", "stack"):
            made[name] = indented(value)
        elif name == "event":
            made[name] = shown(str(value))
        else:
            is_as_it_is = isinstance(value, str) and is_plain(value)
            made[shown(name)] = value if is_as_it_is else _Written(shown(repr(value)))
    return made


class _Written:
    """A value in the words that the renderer is to print, which asks for its repr."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words
