"""Whether this worker is ready to work, since when, and if not, why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

import structlog
from structlog.typing import FilteringBoundLogger

from bso_broker.messages import Readiness as BrokerReadiness

_log: FilteringBoundLogger = structlog.get_logger(__name__)

JOBS = "jobs"
"""The obstacle that many jobs are in trouble: those of all others go on."""
_LOOK_EVERY_S = 1.0
_NONE: Mapping[str, Callable[[], str | None]] = MappingProxyType({})


class WorkerReadiness:
    """Gathers the obstacles to work: the broker's as the consumer sees it, and those reported here by name.

    ``others`` are looked at whenever somebody asks; each gives an obstacle, or None, by its name. A look that
    finds this worker ready for the first time, or no longer ready, is logged.
    """

    def __init__(
        self,
        *,
        broker: Callable[[], BrokerReadiness],
        clock: Callable[[], float],
        others: Mapping[str, Callable[[], str | None]] = _NONE,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._others = others
        self._obstacles: dict[str, str] = {"worker": "starting"}
        self._clear_since_s = clock()
        self._was_ready = False

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            self.reasons()
            await asyncio.sleep(_LOOK_EVERY_S)

    def report(self, name: str, obstacle: str | None) -> None:
        """Say what stands in the way under this name; None: nothing any more."""
        if obstacle is not None:
            self._obstacles[name] = obstacle
        elif self._obstacles.pop(name, None) is not None and not self._obstacles:
            self._clear_since_s = self._clock()

    def reasons(self) -> Mapping[str, str]:
        """Why this worker is not ready, by name; empty: it is."""
        broker = self._broker()
        found = dict(self._obstacles)
        if not broker.ready and broker.reason not in found.values():
            found["broker"] = broker.reason
        for name, look in self._others.items():
            obstacle = look()
            if obstacle is not None and obstacle not in found.values():
                found[name] = obstacle
        if found.keys() - {JOBS}:
            self._clear_since_s = self._clock()
        if self._was_ready != (not found):
            self._was_ready = not found
            _log_turn(found)
        return found

    @property
    def is_ready(self) -> bool:
        """Whether commands are taken, and can be decided and answered right now."""
        return not self.reasons()

    def ready_for_s(self) -> float:
        """How long it has been ready without a break [s], but for jobs in trouble; 0 when it is not."""
        if self.reasons().keys() - {JOBS}:
            return 0.0
        return self._clock() - max(self._clear_since_s, self._broker().since_s)


def _log_turn(found: Mapping[str, str]) -> None:
    if not found:
        _log.info("ready: commands are taken and decided", action="ready")
    elif "worker" in found:
        _log.info("not ready any more", action="not_ready", reasons=dict(found))
    else:
        _log.warning("not ready any more", action="not_ready", reasons=dict(found))
