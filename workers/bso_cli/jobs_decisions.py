"""What was decided for a job, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.markup import escape

from bso.domain.events import (
    AttentionNeeded,
    ChangePoint,
    EpochCostsProbed,
    Event,
    LateResult,
    RecurrenceOpened,
    StopWithdrawn,
    TrialEnded,
    TrialStarted,
)
from bso.domain.quantities import moment
from bso.domain.sentences import ENERGY_ASSUMED, sentence
from bso.schema.codec import EVENTS, wire_name
from bso.service.ports import JobReads
from bso.service.records import StoredEvent
from bso_cli.access import whole_history
from bso_cli.jobs_printed import ENERGY_IS_ASSUMED

_DECISIONS = (
    TrialStarted,
    TrialEnded,
    LateResult,
    StopWithdrawn,
    ChangePoint,
    AttentionNeeded,
    RecurrenceOpened,
    EpochCostsProbed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDecision:
    """One recorded decision or fact: ``text`` is a sentence, ``trial_number`` the trial it is about, if any."""

    seq: int
    at: datetime
    type: str
    trial_number: int | None
    recurrence_number: int | None
    text: str


async def decisions(store: JobReads, job_id: str, *, trial_number: int | None = None) -> list[RecordedDecision]:
    """What was decided for a job, in order; with a trial number, what concerns it alone."""
    found: list[RecordedDecision] = []
    recurrences: dict[str, int] = {}
    async for stored in whole_history(store, job_id):
        event = stored.recorded.event
        if isinstance(event, RecurrenceOpened):
            recurrences[event.recurrence_id] = event.recurrence_number
        about = getattr(event, "trial_number", None)
        is_decision = isinstance(event, _DECISIONS) or wire_name(type(event)) not in EVENTS
        if is_decision and trial_number in (None, about):
            found.append(_decision(stored, event, about, recurrences))
    return found


def story(decisions: Sequence[RecordedDecision]) -> Iterator[str]:
    """Decisions as lines with their time, trials set off from what they taught; that energy is assumed is said once."""
    for one in decisions:
        mark = "•" if one.trial_number is not None else "▸"
        style = ("[bold]", "[/]") if one.type == "trial_started" else ("", "")
        yield f"[dim]{moment(one.at)}[/] {mark} {style[0]}{escape(one.text.removesuffix(ENERGY_ASSUMED))}{style[1]}"
    if any(one.text.endswith(ENERGY_ASSUMED) for one in decisions):
        yield ENERGY_IS_ASSUMED


def _decision(stored: StoredEvent, event: Event, about: int | None, recurrences: Mapping[str, int]) -> RecordedDecision:
    recurrence_id = getattr(event, "recurrence_id", None)
    return RecordedDecision(
        seq=stored.recorded.seq,
        at=stored.recorded.recorded_at,
        type=wire_name(type(event)),
        trial_number=about,
        recurrence_number=recurrences.get(recurrence_id) if recurrence_id is not None else None,
        text=sentence(event),
    )
