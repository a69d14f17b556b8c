"""The ledger: each command that was sent, and each answer that came."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from bso.domain.commands import (
    BeginTrial,
    Command,
    FinishTrial,
    RegisterJob,
    ReportEpoch,
    ReportEpochCosts,
    ReportPowerProfile,
    Request,
)
from bso.domain.replies import (
    EpochCostsRecorded,
    EpochJudged,
    PowerProfileRecorded,
    Registered,
    Reply,
    TrialBegun,
    TrialFinished,
)

CHANGING = (RegisterJob, BeginTrial, ReportEpoch, FinishTrial, ReportPowerProfile, ReportEpochCosts)
"""Commands that leave events."""
_DECIDED = (Registered, TrialBegun, EpochJudged, TrialFinished, PowerProfileRecorded, EpochCostsRecorded)


@dataclass(slots=True, kw_only=True)
class Asked:
    """A command, when it was sent [s] and by which lane (empty: by none), and what was answered.

    ``put_off``: why it was sent again, each time. ``was_kept``: the optimizer has taken it over. ``is_forgotten``:
    restoring a backup has taken away what it did.
    """

    request: Request
    sent_s: float
    is_others: bool
    lane: str = ""
    answered_s: float | None = None
    reply: Reply | None = None
    was_kept: bool = False
    is_forgotten: bool = False
    asked_again: Reply | None = None
    put_off: list[str] = field(default_factory=list)

    @property
    def command(self) -> Command:
        """What was asked."""
        return self.request.command

    def waited_s(self, *, until_s: float) -> float:
        """How long it waited for its answer [s]; without one, until then."""
        return (until_s if self.answered_s is None else self.answered_s) - self.sent_s

    @property
    def is_decided(self) -> bool:
        """Whether it is answered with a decision that the optimizer has recorded."""
        return isinstance(self.command, CHANGING) and isinstance(self.reply, _DECIDED)

    @property
    def decision(self) -> Reply | None:
        """The decision, which came with the first answer, or when a kept command was asked again; None: not seen."""
        return next((reply for reply in (self.reply, self.asked_again) if isinstance(reply, _DECIDED)), None)

    @property
    def is_acknowledged(self) -> bool:
        """Whether the answer says that it is recorded, or will be."""
        is_taken_over = self.was_kept and isinstance(self.command, CHANGING)
        return (self.is_decided or is_taken_over) and not self.is_forgotten


@dataclass(slots=True, kw_only=True)
class Ledger:
    """All commands of a scenario, and what senders found that must not happen.

    ``patient``: jobs whose decisions take so long that a scenario does not wait for the answers to all their lanes.
    ``prepared``: the command_ids of trials that were begun while a scenario was prepared.
    """

    asked: list[Asked] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    patient: set[str] = field(default_factory=set)
    prepared: set[str] = field(default_factory=set)

    @property
    def changing(self) -> list[Asked]:
        """The commands that leave events."""
        return [one for one in self.asked if isinstance(one.command, CHANGING)]

    def unanswered(self, *, before_s: float) -> list[Asked]:
        """The commands sent before then that nobody has answered, but for those of jobs that have to be patient."""
        sent = (one for one in self.asked if one.sent_s < before_s and one.request.job_id not in self.patient)
        return [one for one in sent if one.answered_s is None]

    def lanes_with_a_decision(self, *, since_s: float) -> set[str]:
        """The lanes that have a decision on a command sent since then."""
        recent = itertools.takewhile(lambda one: one.sent_s >= since_s, reversed(self.asked))
        return {one.lane for one in recent if one.is_decided}

    def others_stall_s(self, *, since_s: float, until_s: float) -> float:
        """The longest time [s] in which commands of a job without a fault waited, and none of that job was answered."""
        by_job: dict[str, list[Asked]] = {}
        for one in self.asked:
            if one.is_others:
                by_job.setdefault(one.request.job_id, []).append(one)
        return max((_longest_stall(own, since_s, until_s) for own in by_job.values()), default=0.0)

    def longest_silence_s(self, *, since_s: float) -> float:
        """The longest time [s] between two answers with a decision about one job, of those that end after then.

        A command that the optimizer has kept is answered before it is decided.
        """
        decided_s: dict[str, list[float]] = {}
        for one in self.asked:
            if one.answered_s is not None and one.is_decided:
                decided_s.setdefault(one.request.job_id, []).append(one.answered_s)
        return max(
            (
                later_s - earlier_s
                for moments_s in map(sorted, decided_s.values())
                for earlier_s, later_s in itertools.pairwise(moments_s)
                if later_s >= since_s
            ),
            default=0.0,
        )

    def slowest_s(self, *, since_s: float, until_s: float, is_others: bool, kind: type[Command] | None = None) -> float:
        """The longest time [s] that a command (of a kind) waited, of those not answered before ``since_s``.

        One that nobody has answered has waited until ``until_s``.
        """
        return max(
            (
                one.waited_s(until_s=until_s)
                for one in self.asked
                if (one.answered_s is None or one.answered_s >= since_s)
                and one.is_others is is_others
                and (kind is None or isinstance(one.command, kind))
            ),
            default=0.0,
        )


def _longest_stall(asked: Iterable[Asked], since_s: float, until_s: float) -> float:
    """A stall begins with an answer, or where a command is sent while none waits, and ends with the next answer."""
    moments: list[tuple[float, int]] = []
    for one in asked:
        moments.append((one.sent_s, 1))
        moments.append((one.answered_s if one.answered_s is not None else until_s, -1))
    longest, waiting, began_s = 0.0, 0, since_s
    for moment_s, change in sorted(moments):
        if change > 0:
            if not waiting:
                began_s = max(moment_s, since_s)
            waiting += 1
        else:
            waiting -= 1
            longest = max(longest, moment_s - began_s)
            began_s = max(moment_s, since_s)
    return longest
