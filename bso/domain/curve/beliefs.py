"""What is believed of the cost of each batch size, from all that is remembered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bso.domain.curve import normal
from bso.domain.curve.gaussian_process import Observations, Posterior, Prior
from bso.domain.curve.records import EpochCostKnowledge, EpochKnowledge, EpochRecord, EpochSums
from bso.domain.job_spec import JobSpec
from bso.domain.policy import Expectation
from bso.domain.remembering import remembered
from bso.domain.replacing import replace

EPOCHS_PRIOR = Prior(
    level=math.log(10.0),
    slope=0.2,
    level_variance=9.0,
    slope_variance=0.09,
    curve_variance=0.1,
    length_scale=3.0,
)
"""ln epochs to the target; x in octaves from the default batch size. How much of its own each has, the job tells."""
OWN_VARIANCES = (0.0, 0.005, 0.02)
"""By how much ln epochs of a batch size may differ from a smooth curve: not at all, by some 7 %, by some 14 %.

Under a smooth curve alone its neighbours outvote what a batch size has shown itself, and near ties are never told
apart; where batch sizes have much of their own, each must be tried.
"""
EPOCHS_CHANGE = Prior(
    level=0.0,
    slope=0.0,
    level_variance=1.0,
    slope_variance=0.09,
    curve_variance=0.1,
    length_scale=3.0,
    own_variance=0.02,
)
"""By how much ln epochs may have changed where surprises tell of a change: all alike, or some more than others."""
EPOCH_COST_PRIOR = Prior(level=10.0, slope=-0.35, level_variance=400.0, slope_variance=0.09, curve_variance=0.09)
"""ln of the cost of an epoch [J]; x likewise."""

_USUAL_NOISE = 0.03  # variance of ln epochs between runs, before any was seen
_NOISE_WEIGHT = 4.0  # in degrees of freedom: of that guess among all batch sizes, and of their pool for each
_FAILURES_GUESSED, _RUNS_GUESSED = 0.6, 20.0
_MOST_LIKELY_TO_FAIL = 0.99
_LEAST_COST_NOISE = 1e-4
_LUCK = 0.5  # standard deviations
_WIDEST = 20.0  # variance of ln cost that is told in full
WANDER = 1e-4
"""By how much the variance of a batch size's epoch cost grows with each observation of any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Of one batch size, all in logarithms. ``cost`` is ln of the expected cost [J] of a run that converges.

    ``noise`` is the variance of ln epochs between runs, ``fails`` the probability that a run never converges.
    """

    epochs: float
    noise: float
    epoch_cost: float
    fails: float
    is_cost_known: bool
    is_tried: bool
    has_converged: bool

    @property
    def cost(self) -> float:
        """Ln of epochs times epoch cost, their noise and the failures that precede a converged run included."""
        return self.epochs + self.epoch_cost + 0.5 * self.noise - math.log1p(-self.fails)


class Beliefs:
    """Of all batch sizes of a job, and of those that it had before. ``running`` lists the batch sizes under way.

    ``prior`` is what is expected of ln epochs before any run, but for how much of its own a batch size has.
    """

    def __init__(
        self, spec: JobSpec, epochs: EpochKnowledge, costs: EpochCostKnowledge, *, running: Sequence[int] = ()
    ) -> None:
        self.sizes = tuple(sorted({*spec.batch_sizes, *epochs.records, *costs.records, spec.default_batch_size}))
        self._index = {size: i for i, size in enumerate(self.sizes)}
        self._octaves = tuple(math.log2(size / spec.default_batch_size) for size in self.sizes)
        self._epochs, self._costs = epochs, costs
        self._running = Counter(running)
        self._noise = dict(zip(self.sizes, _noise(epochs, self.sizes), strict=True))
        self._observed, self._before = self._seen(lambda record: record.sums), self._seen(lambda record: record.before)
        self.prior = replace(EPOCHS_PRIOR, own_variance=self._own_variance())
        self._posterior = self._epochs_posterior()
        self._cost_posterior = self._costs_posterior()
        self._believed = {size: self._believe(size) for size in self.sizes}

    def of(self, batch_size: int) -> Belief:
        """What is believed of a batch size."""
        return self._believed[batch_size]

    def octaves_between(self, one: int, other: int) -> float:
        """The distance of two batch sizes in doublings."""
        return abs(self._octaves[self._index[one]] - self._octaves[self._index[other]])

    def neighbours(self, batch_size: int, among: Collection[int]) -> tuple[int, ...]:
        """The next larger and the next smaller one of these."""
        larger = [size for size in among if size > batch_size]
        smaller = [size for size in among if size < batch_size]
        return (*([min(larger)] if larger else ()), *([max(smaller)] if smaller else ()))

    def incumbent(self, among: Collection[int]) -> int | None:
        """The batch size of least expected cost among those that have converged; None before any."""
        known = [size for size in sorted(among) if self._believed[size].has_converged]
        return min(known, key=lambda size: self._believed[size].cost, default=None)

    def expectation(self, batch_size: int) -> Expectation:
        """The expected cost [J] of a run that converges, and how uncertain that expectation is."""
        belief, i = self._believed[batch_size], self._index[batch_size]
        unseen = 0.0 if belief.is_cost_known else self._cost_posterior.variance(i)
        cost = normal.exp(belief.cost)
        return Expectation(
            cost=cost, deviation=cost * math.sqrt(math.expm1(min(self.variance(batch_size) + unseen, _WIDEST)))
        )

    def variance(self, batch_size: int) -> float:
        """The variance of what is believed of ln epochs, their noise apart."""
        return self._posterior.variance(self._index[batch_size])

    def covariance(self, one: int, other: int) -> float:
        """The covariance of what is believed of ln epochs."""
        return self._posterior.covariance(self._index[one], self._index[other])

    def cost_at_best(self, batch_size: int, than: int) -> float:
        """Ln of the ratio of both expected costs, less half its standard deviation: what it may be with some luck."""
        variance = self.variance(batch_size) + self.variance(than) - 2.0 * self.covariance(batch_size, than)
        ratio = self._believed[batch_size].cost - self._believed[than].cost
        return ratio - _LUCK * math.sqrt(max(0.0, variance))

    def cost_ratio_variance(self, one: int, other: int) -> float:
        """The variance of ln of the ratio of two epoch costs; nothing where that of ``one`` was seen."""
        if self._believed[one].is_cost_known:
            return 0.0
        i, j = self._index[one], self._index[other]
        process = self._cost_posterior
        return max(0.0, process.variance(i) + process.variance(j) - 2.0 * process.covariance(i, j))

    def epoch_cost_shape(self, batch_size: int) -> tuple[float, float]:
        """Ln epoch cost relative to the level, as believed, and its variance."""
        record = self._costs.records.get(batch_size)
        if record is not None:
            return record.value, record.variance + WANDER * (self._costs.observations - record.seen_at)
        i = self._index[batch_size]
        return self._cost_posterior.means[i], self._cost_posterior.variance(i)

    @cached_property
    def level(self) -> float:
        """The level of all epoch costs, to be added to their shape."""
        return self._costs.level

    def _believe(self, batch_size: int) -> Belief:
        i, record = self._index[batch_size], self._epochs.record(batch_size)
        fails = (_FAILURES_GUESSED + record.failed) / (_RUNS_GUESSED + record.failed + record.converged)
        is_cost_known = batch_size in self._costs.records
        return Belief(
            epochs=self._posterior.means[i],
            noise=self._noise[batch_size],
            epoch_cost=self.epoch_cost_shape(batch_size)[0] + self._costs.level,
            fails=min(fails, _MOST_LIKELY_TO_FAIL),
            is_cost_known=is_cost_known,
            is_tried=is_cost_known or record.looks > 0 or batch_size in self._running,
            has_converged=record.has_converged,
        )

    def _epochs_posterior(self) -> Posterior:
        posterior = self._epochs_from(self._observed)
        if not self._running:
            return posterior
        observed = dict(self._observed)
        for size, count in self._running.items():  # believe that they will show what is expected
            i = self._index.get(size)
            if i is None:
                continue
            value, variance = observed.get(i, (0.0, math.inf))
            precision, added = 1.0 / variance, count / self._noise[size]
            total = precision + added
            observed[i] = ((value * precision + posterior.means[i] * added) / total, 1.0 / total)
        return self._epochs_from(observed)

    def _epochs_from(self, observed: Observations) -> Posterior:
        return Posterior(self.prior, self._octaves, observed, before=self._before, change=EPOCHS_CHANGE)

    def _own_variance(self) -> float:
        """The mean of OWN_VARIANCES, each weighted by how likely it makes what was seen, all as likely beforehand.

        What was seen before a change counts as of a curve like any other.
        """
        priors = [replace(EPOCHS_PRIOR, own_variance=own) for own in OWN_VARIANCES]
        evidence = [
            sum(Posterior(prior, self._octaves, seen).log_evidence for seen in (self._observed, self._before))
            for prior in priors
        ]
        most = max(evidence)
        weights = [math.exp(one - most) for one in evidence]
        weighted = sum(weight * own for weight, own in zip(weights, OWN_VARIANCES, strict=True))
        return weighted / sum(weights)

    def _seen(self, part: Callable[[EpochRecord], EpochSums]) -> Observations:
        """A part of all that is remembered of each batch size as one observation, by index."""
        found = {
            self._index[size]: part(record).observation(self._noise[size])
            for size, record in self._epochs.records.items()
        }
        return {i: one for i, one in found.items() if one is not None}

    def _costs_posterior(self) -> Posterior:
        now = self._costs.observations
        observed = {
            self._index[size]: (record.value, max(_LEAST_COST_NOISE, record.variance + WANDER * (now - record.seen_at)))
            for size, record in self._costs.records.items()
        }
        return Posterior(EPOCH_COST_PRIOR, self._octaves, observed)


def _noise(epochs: EpochKnowledge, sizes: Sequence[int]) -> list[float]:
    """The variance of ln epochs between runs of each batch size: its own, drawn towards what all have in common."""
    records = [epochs.record(size) for size in sizes]
    freedoms = [max(record.sums.weight - 1.0, 0.0) for record in records]
    shares = [min(1.0, _NOISE_WEIGHT / freedom) if freedom > 0.0 else 1.0 for freedom in freedoms]
    squares = sum(share * record.squares for share, record in zip(shares, records, strict=True))
    counted = sum(min(freedom, _NOISE_WEIGHT) for freedom in freedoms)
    pool = (_NOISE_WEIGHT * _USUAL_NOISE + squares) / (_NOISE_WEIGHT + counted)
    return [
        (_NOISE_WEIGHT * pool + record.squares) / (_NOISE_WEIGHT + freedom)
        for record, freedom in zip(records, freedoms, strict=True)
    ]


def beliefs_from(spec: JobSpec, epochs: EpochKnowledge, costs: EpochCostKnowledge, running: Sequence[int]) -> Beliefs:
    """What is believed while trials of the batch sizes ``running`` are under way."""
    if running:
        return Beliefs(spec, epochs, costs, running=running)
    return _settled_beliefs(spec, epochs.records, costs)


@remembered  # reports change none of what it follows from
def _settled_beliefs(spec: JobSpec, records: Mapping[int, EpochRecord], costs: EpochCostKnowledge) -> Beliefs:
    return Beliefs(spec, EpochKnowledge(records=records), costs)
