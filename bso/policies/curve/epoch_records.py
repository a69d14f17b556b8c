"""What is remembered of runs and their epochs: sums, whose size does not depend on how long a job lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bso.domain.frozen_values import replace
from bso.policies.curve.surprises import NO_SURPRISES, Surprises
from bso.policies.curve.validation import Approach, Landmark, Ratio, with_ratios

_MOST_PLACES = 64
_ONE_BEFORE_THE_LAST = 2.0  # after a change a batch size that was given up may run once more; see Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSums:
    """What runs of one batch size say of ln epochs, or of ln epoch cost.

    ``weight`` counts runs, ``mean`` is theirs. Of epochs, censored runs are not among them: these have been fitted as
    observations with a noise of their own; ``censored_precision`` sums their 1 / variance, ``censored_sum`` what they
    say times that.
    """

    weight: float = 0.0
    mean: float = 0.0
    censored_precision: float = 0.0
    censored_sum: float = 0.0

    def observation(self, noise: float) -> tuple[float, float] | None:
        """All runs as one observation, its value and the variance of its noise; None: there are none.

        ``noise`` is the variance of ln epochs between runs.
        """
        precision = self.weight / noise
        total = precision + self.censored_precision
        return ((precision * self.mean + self.censored_sum) / total, 1.0 / total) if total > 0.0 else None

    def plus(self, other: RunSums, share: float) -> RunSums:
        """The sums with a share of others."""
        weight = self.weight + share * other.weight
        total = self.weight * self.mean + share * other.weight * other.mean
        return RunSums(
            weight=weight,
            mean=total / weight if weight > 0.0 else 0.0,
            censored_precision=self.censored_precision + share * other.censored_precision,
            censored_sum=self.censored_sum + share * other.censored_sum,
        )


def on_one_level(runs: Mapping[int, tuple[RunSums, RunSums]]) -> dict[int, RunSums]:
    """What runs say of each batch size, from those since a change and those before it: these moved by that change.

    By how much, those batch sizes say that have both; where none has, those before the change say nothing. What was
    before counts only where nothing has run since.
    """
    latest = {size: since for size, (since, _) in runs.items() if since.weight}
    older = {size: before for size, (_, before) in runs.items() if before.weight}
    if not latest:
        return older
    shared = {size: min(latest[size].weight, older[size].weight) for size in latest.keys() & older.keys()}
    if not shared:
        return latest
    moved = sum(weight * (latest[size].mean - older[size].mean) for size, weight in sorted(shared.items()))
    shift = moved / sum(shared[size] for size in sorted(shared))
    return {
        size: RunSums(weight=sums.weight, mean=sums.mean + shift) for size, sums in older.items() if size not in latest
    } | latest


def on_fewer_places(
    seen: Sequence[tuple[int, float, float]], places: Sequence[float]
) -> Sequence[tuple[int, float, float]]:
    """What was seen at each place, as number, value and weight; where places are more than 64, of neighbours as one.

    A posterior takes the cube of their number. 64 of them over ten octaves lie far closer than values there may differ.
    """
    if len(seen) <= _MOST_PLACES:
        return seen
    first, last = (places[i] for i in (min(seen)[0], max(seen)[0]))
    bins: dict[int, list[tuple[int, float, float]]] = {}
    for one in sorted(seen):
        number = min(_MOST_PLACES - 1, int((places[one[0]] - first) / (last - first) * _MOST_PLACES))
        bins.setdefault(number, []).append(one)
    return [_as_one(some) for some in bins.values()]


def _as_one(some: Sequence[tuple[int, float, float]]) -> tuple[int, float, float]:
    total = sum(weight for _, _, weight in some)
    value = sum(value * weight for _, value, weight in some) / total
    return some[len(some) // 2][0], value, total


_NO_RUNS = RunSums()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """Runs of one batch size: ``sums`` of those since the last change, ``before`` of those before it.

    ``squares`` is the sum of squared deviations of ln epochs of converged runs since the change. ``converged`` and
    ``failed`` count towards the probability that a run fails, ``looks`` counts all ended runs. ``failed_in_a_row`` is
    the sum, over the runs stopped since the last converged one, of the probability that each would never converge.
    """

    sums: RunSums = _NO_RUNS
    before: RunSums = _NO_RUNS
    squares: float = 0.0
    converged: float = 0.0
    failed: float = 0.0
    looks: int = 0
    failed_in_a_row: float = 0.0
    surprises: Surprises = NO_SURPRISES

    @property
    def has_converged(self) -> bool:
        """Whether any run has, before a change or since."""
        return self.sums.weight > 0.0 or self.before.weight > 0.0

    def with_run(self, ln_epochs: float) -> EpochRecord:
        """The record with one more converged run."""
        weight = self.sums.weight + 1.0
        shift = ln_epochs - self.sums.mean
        mean = self.sums.mean + shift / weight
        return replace(
            self,
            sums=replace(self.sums, weight=weight, mean=mean),
            squares=self.squares + shift * (ln_epochs - mean),
            converged=self.converged + 1.0,
            looks=self.looks + 1,
            failed_in_a_row=0.0,
        )

    def with_censored(self, ln_epochs: float, variance: float, failed: float) -> EpochRecord:
        """The record with one more run that ended before its target."""
        sums = replace(
            self.sums,
            censored_precision=self.sums.censored_precision + 1.0 / variance,
            censored_sum=self.sums.censored_sum + ln_epochs / variance,
        )
        return replace(
            self,
            sums=sums,
            failed=self.failed + failed,
            looks=self.looks + 1,
            failed_in_a_row=self.failed_in_a_row + failed,
        )

    def with_uncounted(self, ln_epochs: float, *, variance: float | None) -> EpochRecord:
        """The record with one more run whose epochs nobody counted: it stands with those before a change.

        One that ended before its target has a ``variance``, as a censored one has.
        """
        if variance is None:
            run = RunSums(weight=1.0, mean=ln_epochs)
        else:
            run = RunSums(censored_precision=1.0 / variance, censored_sum=ln_epochs / variance)
        has_converged = variance is None
        return replace(
            self,
            before=self.before.plus(run, 1.0),
            converged=self.converged + has_converged,
            looks=self.looks + 1,
            failed_in_a_row=0.0 if has_converged else self.failed_in_a_row,
        )

    def with_failure(self, failed: float) -> EpochRecord:
        """The record with one more run that would not have converged, perhaps on its hardware only."""
        return replace(self, failed=self.failed + failed, looks=self.looks + 1)

    def after_change(self, kept: float) -> EpochRecord:
        """The record when trainings have changed; of what was before an earlier change this share still counts."""
        return replace(
            self,
            sums=_NO_RUNS,
            before=self.sums.plus(self.before, kept),
            squares=0.0,
            converged=self.converged * kept,
            failed=self.failed * kept,
            failed_in_a_row=min(self.failed_in_a_row, _ONE_BEFORE_THE_LAST),
            surprises=NO_SURPRISES,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochKnowledge:
    """What one version of a job knows of epochs to the target, on whatever hardware, by batch size.

    ``second_looks`` are the numbers of running trials that the policy lets run although they look expensive.
    ``approaches`` says, by number, how near running trials have come to the target, and ``landmarks``, by exponent,
    how long trials took from there. ``is_inherited``: what ``before`` of the records holds is another version's, or
    another job's, or, where it ``is_uncounted``, of runs of its own whose epochs nobody counted.
    """

    records: Mapping[int, EpochRecord] = field(default_factory=dict)
    second_looks: frozenset[int] = frozenset()
    approaches: Mapping[int, Approach] = field(default_factory=dict)
    landmarks: Mapping[int, Landmark] = field(default_factory=dict)
    is_inherited: bool = False
    is_uncounted: bool = False

    @property
    def is_unproven(self) -> bool:
        """Whether all that is known is inherited: no run has converged yet."""
        return self.is_inherited and not any(record.sums.weight for record in self.records.values())

    def record(self, batch_size: int) -> EpochRecord:
        """What is known of a batch size; an empty record if nothing is."""
        return self.records.get(batch_size, _NOTHING)

    def at_rest(self) -> EpochKnowledge:
        """The knowledge without what is known of running trials."""
        return replace(self, second_looks=frozenset(), approaches={})

    def handed_on(self) -> EpochKnowledge:
        """What another version or job inherits: how long runs took that converged. Others say nothing of its target."""
        known = on_one_level({size: (record.sums, record.before) for size, record in self.records.items()})
        return EpochKnowledge(
            records={
                size: EpochRecord(before=RunSums(weight=sums.weight, mean=sums.mean)) for size, sums in known.items()
            },
            is_inherited=True,
        )

    def with_uncounted(self, batch_size: int, ln_epochs: float, *, variance: float | None) -> EpochKnowledge:
        """The knowledge with a run whose epochs nobody counted."""
        is_first = all(one.sums == _NO_RUNS == one.before for one in self.records.values())
        record = self.record(batch_size).with_uncounted(ln_epochs, variance=variance)
        return replace(
            self,
            records={**self.records, batch_size: record},
            is_inherited=self.is_inherited or is_first,
            is_uncounted=self.is_uncounted or is_first,
        )

    def without_trial(self, trial_number: int) -> EpochKnowledge:
        """The knowledge when a trial no longer runs."""
        approaches = {number: one for number, one in self.approaches.items() if number != trial_number}
        return replace(self, second_looks=self.second_looks - {trial_number}, approaches=approaches)


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntEpochs:
    """What a run says of epochs: converged after exp(``ln_epochs``), or, censored, that with a variance of its own.

    ``failed``: how likely it is that the run would never have converged. ``kept`` is below 1 where the run has shown
    that trainings have changed: the share of older knowledge that still counts (EpochRecord.after_change). Without
    ``ln_epochs`` only ``failed`` is learnt. ``ratios`` are those of the landmarks that a converged run has passed.
    """

    ln_epochs: float | None
    variance: float | None
    failed: float
    kept: float = 1.0
    surprises: Surprises = NO_SURPRISES
    ratios: tuple[Ratio, ...] = ()


_NOTHING = EpochRecord()


def with_learnt_epochs(
    knowledge: EpochKnowledge, trial_number: int, batch_size: int, learnt: LearntEpochs | None
) -> EpochKnowledge:
    """The knowledge after a trial has ended."""
    knowledge = knowledge.without_trial(trial_number)
    if learnt is None:
        return knowledge
    records = dict(knowledge.records)
    if learnt.kept < 1.0:
        records = {size: record.after_change(learnt.kept) for size, record in records.items()}
        is_unproven = knowledge.is_unproven and learnt.variance is not None
        knowledge = replace(knowledge, is_inherited=is_unproven)
    record = records.get(batch_size, _NOTHING)
    if learnt.ln_epochs is None:
        record = record.with_failure(learnt.failed)
    elif learnt.variance is None:
        record = record.with_run(learnt.ln_epochs)
    else:
        record = record.with_censored(learnt.ln_epochs, learnt.variance, learnt.failed)
    if learnt.ln_epochs is not None:
        record = replace(record, surprises=learnt.surprises)
    records[batch_size] = record
    landmarks = with_ratios(knowledge.landmarks, learnt.ratios, learnt.kept)
    return replace(knowledge, records=records, landmarks=landmarks)
