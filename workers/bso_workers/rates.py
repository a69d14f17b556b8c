"""Rates: how fast each login may send, as this worker sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bso.domain.decide import Rules
from bso.domain.quotas import LIMITS, NO_LIMITS
from bso_workers.admission import Admitted
from bso_workers.metrics import Metrics

_BURST_S = 5.0
"""What a login may send at once after a silence, in seconds of its rate."""
_MOST_LOGINS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFast:
    """Which limit a command would pass, in which words, and how long it must wait for that [s]."""

    limit: str
    detail: str
    wait_s: float


class Rates:
    """The generic cell rate algorithm (ITU-T I.371), for commands and for the bytes of their bodies.

    Each worker has its own: a login may send as much as its quota to each of them. ``clock`` is monotonic [s].
    """

    def __init__(self, *, rules: Rules, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self._spent: dict[str, dict[str, float]] = {}  # by login and limit: when what was sent so far ends at that rate

    def passed_by(self, one: Admitted) -> TooFast | None:
        """Which limit a command passes; None: none, and it counts, unless it was handed over before."""
        login = one.sender.user
        quota = self._rules.quota_of(login)
        if login is None or quota is NO_LIMITS or one.delivery.redelivered:
            return None
        spent, now_s = self._spent_by(login), self._clock()
        size = len(one.delivery.body)
        asked = {"commands_per_s": (1, quota.commands_per_s), "bytes_per_s": (size, quota.bytes_per_s)}
        ends: dict[str, float] = {}
        for limit, (amount, rate) in asked.items():
            if rate is None:
                continue
            begins_s = max(now_s, spent.get(limit, 0.0))
            wait_s = begins_s - now_s - _BURST_S
            if wait_s > 0.0:
                self._metrics.over_quota.labels(login, limit).inc()
                unit = limit.removesuffix("_per_s")
                detail = f"login {login} sends faster than {rate:g} {unit} per second to each worker"
                return TooFast(limit=limit, detail=detail, wait_s=wait_s)
            ends[limit] = begins_s + amount / rate
        spent |= ends
        return None

    def _spent_by(self, login: str) -> dict[str, float]:
        if login not in self._spent:
            while len(self._spent) >= _MOST_LOGINS:
                first = next(iter(self._spent))
                del self._spent[first]
                for limit in LIMITS:
                    self._metrics.over_quota.remove(first, limit)
            self._spent[login] = {}
            for limit in LIMITS:  # an increase is seen only of a series that was there before
                self._metrics.over_quota.labels(login, limit)
        return self._spent[login]
