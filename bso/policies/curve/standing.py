"""Which batch sizes may run, and which of them is the incumbent: one answer for choices, stops and descriptions."""

from __future__ import annotations

from dataclasses import dataclass

from bso.domain.frozen_values import remembered_by
from bso.domain.job import JobVersion, Recurrence, awake, fitting
from bso.domain.knowledge import ArmRecord, Knowledge
from bso.policies.curve import normal
from bso.policies.curve.beliefs import Beliefs
from bso.policies.curve.epoch_records import EpochRecord
from bso.policies.curve.memory import epochs_of

_MISSES_TOLERATED = 1
_CAUTION = 1.5  # of how much is to be saved for each risk of a loss of over 10 %
_TWICE = 1.5  # expected failures in a row: more likely than not two
_PACE = 0.1  # batch sizes that keep missing their target are offered ever more rarely, like second looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Batch sizes by what they may do: ``usable`` ones can run, ``offered`` ones do not miss their target repeatedly.

    ``fresh`` are the offered ones that have not failed in the recurrence. Only ``fresh`` may be empty. ``lapsed`` have
    converged before, have failed in the recurrence, and that was probably at least their second failure in a row.
    ``misses`` counts, by batch size, the latest trials in a row that did not converge; of those that were stopped
    before that was certain, one is not counted.
    """

    usable: frozenset[int]
    offered: frozenset[int]
    fresh: frozenset[int]
    lapsed: frozenset[int]
    misses: dict[int, int]

    def incumbent(self, beliefs: Beliefs) -> int | None:
        """The batch size of least expected cost among those that have converged and still do; None: there is none."""
        return beliefs.incumbent(self.converging(_MISSES_TOLERATED))

    def best(self, beliefs: Beliefs) -> int | None:
        """The incumbent, or the default: where the saving is small for the risk that there is a loss instead."""
        found, default = self.incumbent(beliefs), beliefs.default_batch_size
        if found is None or found == default or not self.is_reliable(default, beliefs):
            return found
        ratio, _ = beliefs.ratio(found, default)
        return default if 1.0 - normal.exp(ratio) < _CAUTION * beliefs.risk(found, default) else found

    def safest(self, beliefs: Beliefs) -> int | None:
        """The best one known that has neither failed in the recurrence nor missed, as far as there is one."""
        for tolerated in range(_MISSES_TOLERATED + 1):
            found = beliefs.incumbent(self.converging(tolerated) & self.fresh)
            if found is not None:
                return found
        found = beliefs.incumbent(self.converging(0))
        return found if found is not None else self.incumbent(beliefs)

    def is_reliable(self, batch_size: int, beliefs: Beliefs) -> bool:
        """Whether a batch size has converged, has not missed since, and has not failed in the recurrence."""
        return batch_size in self.fresh & self.converging(0) and beliefs.of(batch_size).has_converged

    def converging(self, tolerated: int) -> frozenset[int]:
        """Those that can run and have missed at most so often in a row."""
        return frozenset(size for size in self.usable if self.misses.get(size, 0) <= tolerated)


def _going_by(version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None) -> tuple[object, ...]:
    return version.spec, epochs_of(version).records, knowledge, recurrence


@remembered_by(_going_by)
def standing_of(version: JobVersion, knowledge: Knowledge, recurrence: Recurrence | None) -> Standing:
    """How the batch sizes stand on a hardware kind, in a recurrence or apart from any."""
    usable = awake(knowledge, fitting(knowledge, version.spec, recurrence))
    epochs = epochs_of(version)
    misses = {size: _misses(knowledge.arm(size), epochs.record(size)) for size in usable}
    number = 0 if recurrence is None else recurrence.recurrence_number
    offered = frozenset(size for size in usable if _may_be_offered(misses[size], number)) or usable
    failed = frozenset[int]() if recurrence is None else recurrence.failed
    lapsed = frozenset(size for size in failed if _has_lapsed(epochs.record(size)))
    return Standing(usable=usable, offered=offered, fresh=offered - failed, lapsed=lapsed, misses=misses)


def _has_lapsed(record: EpochRecord) -> bool:
    return record.has_converged and record.failed_in_a_row > _TWICE


def _misses(arm: ArmRecord, record: EpochRecord) -> int:
    """What did not converge in a row, and what was stopped when hardly any run still converges: that, less one."""
    return max(arm.not_converged_in_a_row, round(record.failed_in_a_row) - 1)


def _may_be_offered(misses: int, recurrence_number: int) -> bool:
    return misses <= _MISSES_TOLERATED or misses**3 <= _PACE * recurrence_number
