"""What came of a scenario: the object in build/faults.json."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

FAR_ABOVE = "far above what is promised"
DID_NOT_STRIKE = "the fault did not strike"
_LATE = (
    FAR_ABOVE,
    DID_NOT_STRIKE,
    "no recovery",
    "not settled",
    "never answered",
    "could not be read to its end",
    "Timeout",
)


@dataclass(kw_only=True)
class Result:
    """What came of a scenario; times in s. ``not_run`` says why it was left out; ``took_s`` how long each part took.

    ``unreported``: trials that have ended for their trainings, and evaluations of trainings, that the optimizer has not
    recorded, though all that trainings had kept was delivered. ``database_version`` is what the server says of itself.
    """

    scenario: str
    seed: int
    broker: str
    database: str
    database_version: str = ""
    began_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    not_run: str | None = None
    attempted: int = 0
    acknowledged: int = 0
    applied: int = 0
    lost: int = 0
    duplicated: int = 0
    contradicted: int = 0
    unreported: int = 0
    unexpected: list[str] = field(default_factory=list)
    others_stall_s: float = 0.0
    others_slowest_s: float = 0.0
    recovery_s: float = 0.0
    recovery_of_harmed_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    promises: dict[str, float] = field(default_factory=dict)
    broken_promises: list[str] = field(default_factory=list)
    took_s: dict[str, float] = field(default_factory=dict)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was lost, doubled or contradicted, all is reported, and nothing unexpected happened."""
        return self.is_safe and not self.unreported and not self.unexpected

    @property
    def is_safe(self) -> bool:
        """Whether nothing was lost, doubled or contradicted."""
        return not (self.lost or self.duplicated or self.contradicted)

    @property
    def may_be_slowness(self) -> bool:
        """Whether what failed may be due to a slow machine: nothing was lost or wrong, something was not in time."""
        late = all(any(words in finding for words in _LATE) for finding in self.unexpected)
        return self.is_safe and not self.unreported and late

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the file."""
        return dataclasses.asdict(self)
