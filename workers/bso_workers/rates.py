"""Rates: how fast each login may send, and how much of it is kept among the dead letters, as this worker sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bso.domain.decide import Rules
from bso.domain.foreign_text import shown
from bso.domain.quotas import LIMITS, NO_LIMITS
from bso_broker.messages import Delivery
from bso_workers.admission import Admitted, Undecidable
from bso_workers.metrics import Metrics

_BURST_S = 5.0
"""What a login may send at once after a silence, in seconds of its rate."""
_MOST_LOGINS = 10_000
_DAY_S = 86_400.0
LETTERS_A_DAY, LETTER_BYTES_A_DAY = 1000, 10_000_000
"""What each worker keeps of one login among the dead letters, of messages that are no commands."""


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

    def passed_by(self, one: Admitted | Undecidable) -> TooFast | None:
        """Which limit a message passes; None: none, and it counts, unless it was handed over before.

        A command that a gateway sends for one of its users counts as that user's.
        """
        login = one.request.user if isinstance(one, Admitted) else one.sender.user
        quota = self._rules.quota_of(login)
        if login is None or quota is NO_LIMITS or one.delivery.redelivered:
            return None
        size = len(one.delivery.body) + one.delivery.discarded_bytes
        asked = {"commands_per_s": (1, quota.commands_per_s), "bytes_per_s": (size, quota.bytes_per_s)}
        passed = _charge(self._spent_by(login), asked, now_s=self._clock(), burst_s=_BURST_S)
        if passed is None:
            return None
        limit, wait_s = passed
        self._metrics.over_quota.labels(shown(login), limit).inc()
        unit = limit.removesuffix("_per_s")
        detail = f"login {login} sends faster than {asked[limit][1]:g} {unit} per second to each worker"
        return TooFast(limit=limit, detail=detail, wait_s=wait_s)

    def _spent_by(self, login: str) -> dict[str, float]:
        if login not in self._spent:
            while len(self._spent) >= _MOST_LOGINS:
                first = next(iter(self._spent))
                del self._spent[first]
                for limit in LIMITS:
                    self._metrics.over_quota.remove(shown(first), limit)
            self._spent[login] = {}
            for limit in LIMITS:  # an increase is seen only of a series that was there before
                self._metrics.over_quota.labels(shown(login), limit)
        return self._spent[login]


class LetterRoom:
    """How much room each login has among the dead letters: so many messages, and so many bytes, a day.

    Without it one login could push out the dead letters of all others. Those that name no login share one room.
    ``clock`` is monotonic [s].
    """

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[str | None, dict[str, float]] = {}

    def has_room_for(self, delivery: Delivery, login: str | None) -> bool:
        """Whether a message is to be kept; if so, it counts, unless it was handed over before."""
        if delivery.redelivered:
            return True
        if login not in self._spent and len(self._spent) >= _MOST_LOGINS:
            del self._spent[next(iter(self._spent))]
        asked = {"letters": (1, LETTERS_A_DAY / _DAY_S), "bytes": (len(delivery.body), LETTER_BYTES_A_DAY / _DAY_S)}
        spent = self._spent.setdefault(login, {})
        return _charge(spent, asked, now_s=self._clock(), burst_s=_DAY_S) is None


def _charge(
    spent: dict[str, float], asked: Mapping[str, tuple[int, float | None]], *, now_s: float, burst_s: float
) -> tuple[str, float] | None:
    """Charge amounts to ``spent`` (when what was sent so far ends at its rate) where none comes too early.

    Else: which one does, and by how long [s]. A rate of None is no limit.
    """
    ends: dict[str, float] = {}
    for limit, (amount, rate) in asked.items():
        if rate is None:
            continue
        begins_s = max(now_s, spent.get(limit, 0.0))
        wait_s = begins_s - now_s - burst_s
        if wait_s > 0.0:
            return limit, wait_s
        ends[limit] = begins_s + amount / rate
    spent |= ends
    return None
