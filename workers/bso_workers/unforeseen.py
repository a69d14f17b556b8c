"""Errors that nobody foresaw, in loops that must go on all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from structlog.typing import FilteringBoundLogger

from bso_workers.metrics import Metrics

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_PAUSE_S = 1.0
_MOST_KNOWN = 100


class UnforeseenErrors:
    """Counts errors of parts of a worker, and logs each with its traceback, but only the first time."""

    def __init__(self, metrics: Metrics) -> None:
        self._counter = metrics.unforeseen_errors
        self._known: set[tuple[str, str]] = set()

    def note(self, error: Exception, *, part: str) -> None:
        """Count an error, and log it if it is new."""
        self._counter.labels(part).inc()
        words = f"{type(error).__name__}: {error}"
        if (part, words) in self._known:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add((part, words))
        _log.error(
            "a part of the worker failed in an unforeseen way: it goes on",
            action="unforeseen_error",
            part=part,
            reason=words,
            exc_info=error,
        )

    async def keep_up(self, part: str, loop: Callable[[], Awaitable[None]], *, pause_s: float = _PAUSE_S) -> None:
        """Run a loop, and begin it again after each error."""
        while True:
            try:
                return await loop()
            except Exception as error:  # noqa: BLE001  noted; it must not end the worker
                self.note(error, part=part)
                await asyncio.sleep(pause_s)
