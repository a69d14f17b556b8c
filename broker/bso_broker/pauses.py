"""How long to wait before a connection is made again."""

from __future__ import annotations

import random

FIRST_PAUSE_S = 0.1
YOUNG_S = 10.0  # a session that ends earlier may end because of what the next one meets too
_YOUNG_IN_A_CROWD_S = 1.0


class Pauses:
    """Before the next session: within ``spread_s`` after one that lived long, else about twice as long as before.

    With a spread, sessions are old after a second: a crowd that has just begun must not come back at once either.
    Whatever ends sessions as soon as they begin must not use up the deliveries of every command within a second.
    """

    def __init__(self, *, spread_s: float = 0.0, longest_s: float = 5.0) -> None:
        self._spread_s = spread_s
        self._longest_s = longest_s
        self._young_s = _YOUNG_IN_A_CROWD_S if spread_s else YOUNG_S
        self._ceiling_s = FIRST_PAUSE_S

    def after(self, lived_s: float) -> float:
        """How long to wait, in seconds, after a session that lived so long."""
        if lived_s >= self._young_s:
            self._ceiling_s = FIRST_PAUSE_S
            return random.uniform(0.0, self._spread_s)  # noqa: S311  # many trainings, not all at once
        pause_s = random.uniform(self._ceiling_s / 2, self._ceiling_s)  # noqa: S311  # many workers, not all at once
        self._ceiling_s = min(2 * self._ceiling_s, self._longest_s)
        return pause_s
