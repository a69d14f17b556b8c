"""What is remembered of epoch costs on a hardware kind: sums, whose size does not depend on how long a job lives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bso.domain.frozen_values import replace
from bso.policies.curve.epoch_records import RunSums, on_one_level

MOST_FREEDOM_HANDED_ON = 3.0
"""Degrees of freedom of the noise seen elsewhere that count: it may be more or less here."""
_MOST_RUNS = 30.0  # of a batch size that count: with more, the latest count most
_RECENT = 12
_FORGOTTEN = 0.02  # of what is known of noise, with each run
_SPIKES_GUESSED, _RUNS_GUESSED = 0.3, 12.0
_SLACK, _ALARM = 0.5, 4.9  # standard deviations: what a surprise may be, and a sum of what exceeds it
_SPIKED = 0.78  # of a job with fifteen runs and no spike, two great surprises in a row are enough
_LEAST_WEIGHT = 0.05
_USUAL_WITHIN, _WITHIN_WEIGHT = 0.02**2, 1.0  # variance between reports of a run, and degrees of freedom of that guess
_NO_RUNS = RunSums()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCostRecord:
    """ln of the cost [J] of an epoch of one batch size: ``sums`` of runs since costs last changed, ``before`` it."""

    sums: RunSums = _NO_RUNS
    before: RunSums = _NO_RUNS

    @property
    def is_known(self) -> bool:
        """Whether any epoch was seen."""
        return self.sums.weight > 0.0 or self.before.weight > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentCost:
    """ln epoch cost [J] of one of the last runs: ``value`` as it was, ``trusted`` as far as it was believed."""

    batch_size: int
    value: float
    trusted: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSurprises:
    """Whether costs have changed, of all batch sizes alike: a two-sided CUSUM test (Page, 1954).

    The sums of standardized surprises of runs, less what each may be; of how many runs each is; and how many of the
    ``rising_for`` runs were taken for spikes, which they were not if costs turn out to have changed.
    """

    rising: float = 0.0
    rising_for: int = 0
    falling: float = 0.0
    falling_for: int = 0
    spikes: int = 0

    def after_run(self, surprise: float, spike_rate: float, *, is_spike: bool) -> CostSurprises:
        """The sums after a run, whose surprise is in standard deviations. The more spikes there are, the less one says.

        (A surprise less the slack is the logarithm of how much likelier it is after a change by one deviation.)
        """
        more = min(surprise - _SLACK, _SPIKED * math.log(1.0 / spike_rate))
        # Equation 16 of docs/curve.md.
        rising, falling = max(0.0, self.rising + more), max(0.0, self.falling - surprise - _SLACK)
        return CostSurprises(
            rising=rising,
            rising_for=self.rising_for + 1 if rising else 0,
            falling=falling,
            falling_for=self.falling_for + 1 if falling else 0,
            spikes=self.spikes + is_spike if rising else 0,
        )

    def after_another(self) -> CostSurprises:
        """The sums after a run that is no surprise in any sense: the first one of its batch size."""
        return replace(
            self,
            rising_for=self.rising_for + bool(self.rising_for),
            falling_for=self.falling_for + bool(self.falling_for),
        )

    @property
    def changed_for(self) -> int:
        """For how many runs costs have been other than they were; 0: they have not changed, as far as can be seen."""
        if max(self.rising, self.falling) <= _ALARM:
            return 0
        return min(self.rising_for if self.rising > self.falling else self.falling_for, _RECENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """ln of what an epoch of a batch size would cost [J], as it was probed, and the variance of so few steps."""

    value: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCostKnowledge:
    """What is known of epoch costs on one hardware kind.

    ``squares`` is the sum of squared deviations between runs of the same batch size, and has ``freedom`` degrees of
    freedom; older ones count less. ``recent`` are the last runs. ``spikes`` of all ``runs`` cost far more than usual.
    ``profiling_ratio`` is the mean, over ``profiled`` epochs, of what an epoch in which power limits were profiled
    cost, as a multiple of an ordinary one. ``within_squares`` and ``within_freedom`` are like ``squares`` and
    ``freedom``, of epoch costs of the reports of a run; ``interval`` is the progress between two of them in the latest
    run, in epochs. ``is_inherited``: what ``before`` of the records holds is another version's, or another job's;
    ``is_uncounted``: it is of runs whose epochs nobody counted. ``probes`` are the latest ones of each batch size.
    """

    records: Mapping[int, EpochCostRecord] = field(default_factory=dict)
    squares: float = 0.0
    freedom: float = 0.0
    recent: tuple[RecentCost, ...] = ()
    surprises: CostSurprises = CostSurprises()
    spikes: int = 0
    runs: int = 0
    profiling_ratio: float = 1.0
    profiled: int = 0
    within_squares: float = 0.0
    within_freedom: float = 0.0
    interval: float = 1.0
    is_inherited: bool = False
    is_uncounted: bool = False
    probes: Mapping[int, Probe] = field(default_factory=dict)

    @property
    def is_seen(self) -> bool:
        """Whether any epoch was paid for; else nothing is known but how costs of batch sizes compare, at most."""
        return any(record.sums.weight for record in self.records.values())

    def record(self, batch_size: int) -> EpochCostRecord:
        """What is known of a batch size; an empty record if nothing is."""
        return self.records.get(batch_size, _NOTHING)

    @property
    def weight(self) -> float:
        """How many runs stand behind how batch sizes compare."""
        return sum(sums.weight for sums in self.compared.values())

    @property
    def within(self) -> tuple[float, float]:
        """``within_squares`` and ``within_freedom``, with those of the guess before any run."""
        return _WITHIN_WEIGHT * _USUAL_WITHIN + self.within_squares, _WITHIN_WEIGHT + self.within_freedom

    @property
    def within_noise(self) -> float:
        """The variance of ln epoch cost between reports of a run."""
        squares, freedom = self.within
        return squares / freedom

    @property
    def compared(self) -> dict[int, RunSums]:
        """How batch sizes compare, all on the level of the latest runs."""
        return on_one_level({size: (record.sums, record.before) for size, record in self.records.items()})

    def handed_on(self) -> EpochCostKnowledge:
        """What another version or job inherits: how costs compare and, with less weight, by how much they vary."""
        share = min(1.0, MOST_FREEDOM_HANDED_ON / self.freedom) if self.freedom else 0.0
        return EpochCostKnowledge(
            records={size: EpochCostRecord(before=sums) for size, sums in self.compared.items()},
            squares=share * self.squares,
            freedom=share * self.freedom,
            profiling_ratio=self.profiling_ratio,
            profiled=self.profiled,
            within_squares=self.within_squares,
            within_freedom=self.within_freedom,
            interval=self.interval,
            is_inherited=True,
        )

    def with_uncounted(self, batch_size: int, ln_epoch_cost: float) -> EpochCostKnowledge:
        """The knowledge with a run whose epochs nobody counted: it says how batch sizes compare, and no level.

        Runs of one batch size also say by how much costs vary, that of epochs included.
        """
        record = self.record(batch_size)
        before, is_first = record.before, not any(one.is_known for one in self.records.values())
        square = (ln_epoch_cost - before.mean) ** 2 * before.weight / (before.weight + 1.0)
        added = replace(record, before=before.plus(RunSums(weight=1.0, mean=ln_epoch_cost), 1.0))
        return replace(
            self,
            records={**self.records, batch_size: added},
            squares=self.squares + square,
            freedom=self.freedom + min(before.weight, 1.0),
            is_uncounted=self.is_uncounted or is_first,
        )

    @property
    def spike_rate(self) -> float:
        """The expected share of runs that are spikes."""
        return (_SPIKES_GUESSED + self.spikes) / (_RUNS_GUESSED + self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntEpochCost:
    """What a run says of epoch costs: ln epoch cost [J] as it was (``value``), and as far as it is believed.

    ``weight`` is below 1 where power limits were profiled. ``square`` is what the run adds to the squared deviations
    between runs; None: nothing can be said. ``moved`` is not 0 where costs have changed: so many of the last runs, this
    one included, came after the change, and what was seen before an earlier change is to be raised by ``shift``.
    ``is_spike``: a spike has come to light. ``forgets``: the one run of the batch size until now was it.
    """

    value: float
    trusted: float
    weight: float
    square: float | None
    surprises: CostSurprises
    moved: int = 0
    shift: float = 0.0
    is_spike: bool = False
    forgets: bool = False
    profiling_ratio: float | None = None
    within_squares: float = 0.0
    within_freedom: float = 0.0
    interval: float = 1.0


_NOTHING = EpochCostRecord()


def with_learnt_cost(
    knowledge: EpochCostKnowledge, batch_size: int, learnt: LearntEpochCost | None
) -> EpochCostKnowledge:
    """The knowledge after a trial has ended."""
    if learnt is None:
        return knowledge
    run = RecentCost(batch_size=batch_size, value=learnt.value, trusted=learnt.trusted, weight=learnt.weight)
    recent = (*knowledge.recent[1 - _RECENT :], run)
    ratio, profiled = knowledge.profiling_ratio, knowledge.profiled
    if learnt.profiling_ratio is not None:
        profiled += 1
        ratio += (learnt.profiling_ratio - ratio) / profiled
    kept = 1.0 - _FORGOTTEN
    return EpochCostKnowledge(
        records=_changed(knowledge, recent, learnt) if learnt.moved else _added(knowledge, run, forgets=learnt.forgets),
        squares=knowledge.squares * kept + (learnt.square or 0.0),
        freedom=knowledge.freedom * kept + (0.0 if learnt.square is None else 1.0),
        recent=recent,
        surprises=learnt.surprises,
        spikes=knowledge.spikes + learnt.is_spike - (knowledge.surprises.spikes if learnt.moved else 0),
        runs=knowledge.runs + 1,
        profiling_ratio=ratio,
        profiled=profiled,
        within_squares=knowledge.within_squares * kept + learnt.within_squares,
        within_freedom=knowledge.within_freedom * kept + learnt.within_freedom,
        interval=learnt.interval,
        is_inherited=knowledge.is_inherited and not learnt.moved,
        is_uncounted=knowledge.is_uncounted and not learnt.moved,
        probes=knowledge.probes,
    )


def _added(knowledge: EpochCostKnowledge, run: RecentCost, *, forgets: bool) -> dict[int, EpochCostRecord]:
    record = knowledge.record(run.batch_size)
    sums = _plus(_NO_RUNS if forgets else record.sums, run.trusted, run.weight)
    return {**knowledge.records, run.batch_size: replace(record, sums=sums)}


def _changed(
    knowledge: EpochCostKnowledge, recent: Sequence[RecentCost], learnt: LearntEpochCost
) -> dict[int, EpochCostRecord]:
    """What was seen until the change belongs to before it; there is nothing else now than the runs since."""
    since = recent[-learnt.moved :]
    sums = {size: record.sums for size, record in knowledge.records.items()}
    for run in since[:-1]:
        sums[run.batch_size] = _minus(sums[run.batch_size], run.trusted, run.weight)
    after = {
        size: EpochCostRecord(before=_joined(sums[size], record.before, learnt.shift))
        for size, record in knowledge.records.items()
    }
    for run in since:
        record = after.get(run.batch_size, _NOTHING)
        after[run.batch_size] = replace(record, sums=_plus(record.sums, run.value, run.weight))
    return after


def _plus(sums: RunSums, value: float, weight: float) -> RunSums:
    held = min(sums.weight, _MOST_RUNS)
    return RunSums(weight=held + weight, mean=sums.mean + (value - sums.mean) * weight / (held + weight))


def _minus(sums: RunSums, value: float, weight: float) -> RunSums:
    left = sums.weight - weight
    if left < _LEAST_WEIGHT:
        return _NO_RUNS
    return RunSums(weight=left, mean=sums.mean - (value - sums.mean) * weight / left)


def _joined(sums: RunSums, older: RunSums, shift: float) -> RunSums:
    joined = sums.plus(replace(older, mean=older.mean + shift), 1.0) if older.weight else sums
    return replace(joined, weight=min(joined.weight, _MOST_RUNS))
