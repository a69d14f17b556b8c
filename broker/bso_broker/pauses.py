"""How long to wait before a broken session is followed by the next one."""

from __future__ import annotations

import random

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
YOUNG_S = 10.0  # a session that ends earlier may end because of what the next one meets too


class Pauses:
    """Before the next session: none after one that lived long, else each about twice as long as the one before.

    Whatever ends sessions as soon as they begin must not use up the deliveries of every command within a second.
    """

    def __init__(self) -> None:
        self._ceiling_s = FIRST_BACKOFF_S

    def after(self, lived_s: float) -> float:
        """How long to wait, in seconds, after a session that lived so long."""
        if lived_s >= YOUNG_S:
            self._ceiling_s = FIRST_BACKOFF_S
            return 0.0
        pause_s = random.uniform(self._ceiling_s / 2, self._ceiling_s)  # noqa: S311  # many workers, not all at once
        self._ceiling_s = min(2 * self._ceiling_s, LONGEST_BACKOFF_S)
        return pause_s
