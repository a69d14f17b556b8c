"""Jobs as lists show them: what is stored of each at a glance, and what the current version knows."""

from __future__ import annotations

from dataclasses import dataclass

from bso.domain.decide import describe_job
from bso.domain.policies import PolicyMissing
from bso.domain.quantities import NOTHING, listed
from bso.domain.replies import JobDescription, KindDescription
from bso.domain.savings import SavedInMonth, TotalSaved, saved_by_month, total_saved
from bso.schema.errors import MalformedMessage, StateTooNew
from bso.service.records import JobOverview, ParkedJob
from bso.service.serialization import read_snapshot

IN_TROUBLE, NEEDS_ATTENTION, UNREADABLE = "in trouble", "needs attention", "cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A job of the list. ``description`` is None of a deleted job, and of one whose state cannot be read.

    ``parked``: its commands cannot be decided for now. ``saved``: what it saved, by month, before it was deleted, too.
    """

    overview: JobOverview
    description: JobDescription | None
    parked: ParkedJob | None = None
    saved: tuple[SavedInMonth, ...] = ()

    @property
    def kind(self) -> KindDescription | None:
        """What the current version knows on the hardware kind of the last trial; None: nothing."""
        kinds = self.description.kinds if self.description is not None else ()
        last = self.overview.last_trial
        return next((kind for kind in kinds if last is not None and kind.hardware_key == last.hardware.key), None)

    @property
    def expected_saving(self) -> float | None:
        """By what share less a training with the best batch size is expected to cost than one with the default.

        None: one of the two has not converged yet, or there is nothing to compare.
        """
        if self.kind is None or self.description is None:
            return None
        sizes = (self.kind.best_batch_size, self.description.spec.default_batch_size)
        arms = {arm.batch_size: arm.posterior_mean for arm in self.kind.arms if arm.convergences}
        best, default = (arms.get(size) if size is not None else None for size in sizes)
        return None if best is None or not default else 1.0 - best / default

    @property
    def next_decision(self) -> str:
        """What the next training will probably run with, in a few words."""
        if self.description is None:
            return NOTHING
        if self.kind is None:
            return f"{self.description.spec.default_batch_size} (default)"
        best, confidence = self.kind.best_batch_size, self.kind.confidence
        if best is None:
            return "not known yet"
        is_explored = self.kind.round_number is not None or (confidence is not None and confidence.more_runs_pay)
        return f"{best} or another" if is_explored else f"{best}"

    @property
    def total_saved(self) -> TotalSaved:
        """What it saved in all."""
        return total_saved((self.overview.summary.job_id, one) for one in self.saved)

    @property
    def attention(self) -> str:
        """Why somebody should look at it, in a word or two; empty: nobody need."""
        if self.parked is not None:
            return IN_TROUBLE
        if self.description is None and not self.overview.summary.is_deleted:
            return UNREADABLE
        return NEEDS_ATTENTION if self.attention_in_full else ""

    @property
    def attention_in_full(self) -> str:
        """Why it needs attention, and what to do, in a sentence; empty: it does not."""
        kinds = self.description.kinds if self.description is not None else ()
        needing = [kind for kind in kinds if kind.needs_attention]
        if not needing:
            return ""
        where = f" on {listed([kind.hardware for kind in needing])}" if len(kinds) > 1 else ""
        return f"job {self.overview.summary.job_id} {NEEDS_ATTENTION}{where}: {needing[-1].attention}"


def listed_job(overview: JobOverview, parked: ParkedJob | None = None) -> ListedJob:
    """A job of the list, its snapshot read."""
    description, saved = None, tuple[SavedInMonth, ...]()
    try:
        job = read_snapshot(overview.stored)
        if overview.summary.is_deleted:
            saved = saved_by_month(job.ledger)
        else:
            description = describe_job(job)
            saved = description.saved
    except (MalformedMessage, PolicyMissing, StateTooNew):
        pass
    return ListedJob(overview=overview, description=description, parked=parked, saved=saved)
