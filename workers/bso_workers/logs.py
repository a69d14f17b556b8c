"""Logs: one line per fact, as JSON or for people."""

from __future__ import annotations

import logging
from typing import TextIO

import structlog
from structlog.typing import Processor

from bso_workers.settings import LogFormat, LogLevel

_NOISY = {"aiormq": logging.ERROR, "aiohttp": logging.WARNING, "asyncio": logging.WARNING}
_FAILED_ATTEMPT = "error when creating transport"  # aiormq says so at every attempt, bso_broker once and in words
_FACTS: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def configure_logs(*, level: LogLevel, style: LogFormat, stream: TextIO) -> None:
    """Send what this program and its libraries log to one stream, in one form, with time and level on each line."""
    number = logging.getLevelNamesMapping()[level.upper()]
    is_json = style == "json" or (style == "auto" and not stream.isatty())
    rendering = _as_json() if is_json else _for_people(has_colors=stream.isatty())
    structlog.configure(
        processors=[*_FACTS, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _lead_libraries_to(stream, number, rendering)


def _lead_libraries_to(stream: TextIO, level: int, rendering: tuple[Processor, ...]) -> None:
    """What is logged with the standard library, by the broker's part among others, looks the same."""
    handler = logging.StreamHandler(stream)
    handler.addFilter(lambda record: _FAILED_ATTEMPT not in record.getMessage())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_FACTS, structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, least in _NOISY.items():
        logging.getLogger(name).setLevel(max(level, least))


def _as_json() -> tuple[Processor, ...]:
    return (
        structlog.processors.ExceptionRenderer(),
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(),
    )


def _for_people(*, has_colors: bool) -> tuple[Processor, ...]:
    # A traceback with the values of variables would show passwords.
    plain = structlog.dev.plain_traceback
    return (structlog.dev.ConsoleRenderer(colors=has_colors, exception_formatter=plain),)
