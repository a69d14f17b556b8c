"""What is believed of the cost of each batch size, from all that is remembered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bso.domain.frozen_values import remembered_by
from bso.domain.job import JobVersion
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge
from bso.domain.policy import Expectation
from bso.policies.curve import normal
from bso.policies.curve.cost_records import EpochCostKnowledge
from bso.policies.curve.epoch_records import EpochKnowledge, EpochRecord, RunSums, on_fewer_places
from bso.policies.curve.gaussian_process import Observations, Posterior, Related
from bso.policies.curve.hypotheses import EPOCHS_CHANGE, CostBeliefs, change_since_inherited, prior_of_epochs
from bso.policies.curve.memory import costs_elsewhere, epoch_costs_on, epochs_of

MOST_KEPT = 64
"""Beliefs that are remembered: those of 64 batch sizes take 1 MB."""
_USUAL_NOISE = 0.03  # variance of ln epochs between runs, before any was seen
_NOISE_WEIGHT = 4.0  # in degrees of freedom: of that guess among all batch sizes, and of their pool for each
_FAILURES_GUESSED, _RUNS_GUESSED = 0.6, 20.0
_MOST_LIKELY_TO_FAIL = 0.99
_LUCK = 0.5  # standard deviations
_MUCH = math.log(1.1)  # ln of how many times more expensive
_LEAST_VARIANCE = 1e-12
_WIDEST = 20.0  # variance of ln cost that is shown in full
_ByPlace = Mapping[int, tuple[float, float]]
"""Observations by the index of a batch size: the value, and the variance of its noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """Of one batch size, all in logarithms. ``cost`` is ln of the expected cost [J] of a model, noise and the failed
    runs before the one that converges included; ``converged_cost`` is that of the latter alone.

    ``epochs`` and ``epoch_cost`` are means over runs, each believed with a ``variance``; ``noise`` is the variance of
    ln epochs between runs, ``cost_noise`` that of ln epoch cost, ``fails`` the probability that a run never converges.
    """

    epochs: float
    variance: float
    noise: float
    epoch_cost: float
    epoch_cost_variance: float
    cost_noise: float
    fails: float
    converged_cost: float
    cost: float
    is_tried: bool
    has_converged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is believed of a batch size (``own``) beside the incumbent (``best``).

    ``shared`` is the covariance of what is believed of ln epochs of both.
    """

    batch_size: int
    incumbent: int
    own: Belief
    best: Belief
    shared: float
    min_saving: float

    def epochs_learnt(self, runs: int) -> float:
        """By how much so many runs are expected to reduce the variance of ln of the ratio of the epochs of both."""
        # Equation 9 of docs/curve.md.
        return (self.own.variance - self.shared) ** 2 / (self.own.variance + self.own.noise / runs)


class Beliefs:
    """Of all batch sizes of a job, and of those that it had before. ``running`` lists the batch sizes under way.

    ``elsewhere`` is what is known of epoch costs on another hardware kind; ``within_noise`` is the variance of ln epoch
    cost between reports of a run, ``interval`` the progress between two of them, in epochs. ``prior`` is what is
    expected of ln epochs before any run; how much of its own a batch size has, the runs have shown.
    """

    def __init__(
        self,
        spec: JobSpec,
        epochs: EpochKnowledge,
        costs: EpochCostKnowledge,
        *,
        elsewhere: EpochCostKnowledge | None = None,
        running: Sequence[int] = (),
    ) -> None:
        self.default_batch_size, self.min_saving = spec.default_batch_size, spec.min_saving
        self.may_stop = spec.early_stopping and spec.beta_knob is not None
        self._most_epochs = math.log(spec.max_epochs)
        self._bound = math.log(spec.beta_knob) if self.may_stop and spec.beta_knob is not None else math.inf
        others = () if elsewhere is None else elsewhere.records
        known = {*epochs.records, *costs.records, *costs.probes, *others}
        self.sizes = tuple(sorted({*spec.batch_sizes, *known, spec.default_batch_size}))
        self._index = {size: i for i, size in enumerate(self.sizes)}
        self._octaves = tuple(math.log2(size / spec.default_batch_size) for size in self.sizes)
        self._epochs, self._costs = epochs, costs
        self._running = Counter(running)
        self._noise = dict(zip(self.sizes, _noise(epochs, self.sizes), strict=True))
        observed = self._seen(lambda record: record.sums)
        seen, before = Observations.of(observed), Observations.of(self._seen(lambda record: record.before))
        self.prior = prior_of_epochs(self._octaves, seen, before)
        change = EPOCHS_CHANGE
        if epochs.is_inherited:
            change = change_since_inherited(self.prior, self._octaves, seen, before)
        related = [Related(observed=before, change=change)]
        self._posterior = Posterior(self.prior, self._octaves, seen, related)
        if running:
            seen = Observations.of(self._with_running(observed, self._posterior.means[0].tolist()))
            self._posterior = Posterior(self.prior, self._octaves, seen, related)
        self._epochs_means: list[float] = self._posterior.means[0].tolist()
        self._epochs_variances: list[float] = self._posterior.variances[0].tolist()
        self._cost_beliefs = CostBeliefs(self._octaves, self._index, costs, elsewhere)
        latest = elsewhere if elsewhere is not None and not costs.is_seen else costs
        self.within_noise, self.interval = latest.within_noise, latest.interval
        self._believed = {size: self._believe(size) for size in self.sizes}

    def of(self, batch_size: int) -> Belief:
        """What is believed of a batch size."""
        return self._believed[batch_size]

    def compared(self, batch_size: int, incumbent: int) -> Comparison:
        """What is believed of a batch size beside the incumbent: all that matters for a running trial of it."""
        return Comparison(
            batch_size=batch_size,
            incumbent=incumbent,
            own=self._believed[batch_size],
            best=self._believed[incumbent],
            shared=self.covariance(batch_size, incumbent),
            min_saving=self.min_saving,
        )

    def is_probed(self, batch_size: int) -> bool:
        """Whether what its epochs cost was probed on the hardware kind."""
        return batch_size in self._costs.probes

    def octaves_between(self, one: int, other: int) -> float:
        """The distance of two batch sizes in doublings."""
        return abs(self._octaves[self._index[one]] - self._octaves[self._index[other]])

    def neighbours(self, batch_size: int, among: Collection[int]) -> tuple[int, ...]:
        """The next larger and the next smaller one of these."""
        larger = [size for size in among if size > batch_size]
        smaller = [size for size in among if size < batch_size]
        return (*([min(larger)] if larger else ()), *([max(smaller)] if smaller else ()))

    def incumbent(self, among: Collection[int]) -> int | None:
        """The batch size of least expected cost among those that have converged; None before any.

        Of those that cost at most ``min_saving`` more, the one with most runs: the job stays where it is.
        """
        known = [size for size in sorted(among) if self._believed[size].has_converged]
        most = min((self._believed[size].cost for size in known), default=0.0) - math.log1p(-self.min_saving)
        near = [size for size in known if self._believed[size].cost <= most]
        return max(near, key=self._experience, default=None)

    def expectation(self, batch_size: int) -> Expectation:
        """The expected cost [J] of a model, failed runs before it included, and how uncertain that expectation is."""
        belief = self._believed[batch_size]
        cost = normal.exp(belief.cost)
        variance = belief.variance + belief.epoch_cost_variance
        return Expectation(cost=cost, deviation=cost * math.sqrt(math.expm1(min(variance, _WIDEST))))

    def covariance(self, one: int, other: int) -> float:
        """The covariance of what is believed of ln epochs."""
        return float(self._posterior.covariances(self._index[other])[0, self._index[one]])

    def cost_at_best(self, batch_size: int, than: int) -> float:
        """Ln of the ratio of both expected costs, less half the deviation of what epochs say: with some luck."""
        ratio, _ = self.ratio(batch_size, than)
        return ratio - _LUCK * math.sqrt(self.epochs_ratio_variance(batch_size, than))

    def epochs_ratio_variance(self, one: int, other: int) -> float:
        """The variance of ln of the ratio of what both need in epochs."""
        variances = self._believed[one].variance + self._believed[other].variance
        return max(0.0, variances - 2.0 * self.covariance(one, other))

    def cost_ratio_variance(self, one: int, other: int) -> float:
        """The variance of ln of the ratio of two epoch costs."""
        return self._cost_beliefs.ratio_variance(self._index[one], self._index[other])

    def cost_learnt(self, one: int, other: int, runs: Sequence[int], *, reports: float = math.inf) -> list[float]:
        """By how much each of these numbers of runs of ``one`` is expected to reduce that.

        Each run is stopped after so many ``reports``.
        """
        return self._cost_beliefs.learnt(self._index[one], self._index[other], runs, self.within_noise / reports)

    @property
    def cost_noise(self) -> float:
        """The variance of ln epoch cost between runs of a batch size."""
        return self._cost_beliefs.noise

    def spike_probability(self, batch_size: int) -> float:
        """How likely it is that a batch size ran once, and cost far more per epoch than it usually does."""
        return self._cost_beliefs.spike_probabilities[self._index[batch_size]]

    def ratio(self, one: int, other: int) -> tuple[float, float]:
        """Ln of the ratio of both expected costs, and its variance."""
        ratio = self._believed[one].cost - self._believed[other].cost
        # Equation 8 of docs/curve.md.
        return ratio, self.epochs_ratio_variance(one, other) + self.cost_ratio_variance(one, other)

    def learnt(self, one: int, other: int, runs: int) -> float:
        """By how much so many runs of ``one`` are expected to reduce that variance."""
        return self.compared(one, other).epochs_learnt(runs) + self.cost_learnt(one, other, (runs,))[0]

    def risk(self, batch_size: int, than: int) -> float:
        """How likely it is that a batch size is over 10 % more expensive than another."""
        ratio, variance = self.ratio(batch_size, than)
        return normal.above((_MUCH - ratio) / math.sqrt(max(variance, _LEAST_VARIANCE)))

    def chance(self, batch_size: int, than: int) -> float:
        """How likely it is that a batch size saves at least ``min_saving`` of what another costs."""
        ratio, variance = self.ratio(batch_size, than)
        return normal.below((math.log1p(-self.min_saving) - ratio) / math.sqrt(max(variance, _LEAST_VARIANCE)))

    def _experience(self, batch_size: int) -> tuple[float, float, bool, float]:
        """How long the job has been there: runs since the last change and before it; then the default, the cheapest."""
        record, is_default = self._epochs.record(batch_size), batch_size == self.default_batch_size
        return record.sums.weight, record.before.weight, is_default, -self._believed[batch_size].cost

    def _believe(self, batch_size: int) -> Belief:
        i, record = self._index[batch_size], self._epochs.record(batch_size)
        # Equation 6 of docs/curve.md.
        runs = _RUNS_GUESSED + record.failed + record.converged
        fails = min((_FAILURES_GUESSED + record.failed) / runs, _MOST_LIKELY_TO_FAIL)
        epochs, noise = self._epochs_means[i], self._noise[batch_size]
        epoch_cost, cost_noise = self._cost_beliefs.means[i], self._cost_beliefs.noise
        converged_cost = epochs + epoch_cost + 0.5 * (noise + cost_noise)
        failed = normal.exp(max(0.0, min(self._bound, self._most_epochs - epochs - 0.5 * noise)))
        more = (failed - 1.0) * min(record.failed / runs, fails)  # than if a failed run cost as much as another
        return Belief(
            epochs=epochs,
            variance=self._epochs_variances[i],
            noise=noise,
            epoch_cost=epoch_cost,
            epoch_cost_variance=self._cost_beliefs.variances[i],
            cost_noise=cost_noise,
            fails=fails,
            converged_cost=converged_cost,
            # Equation 7 of docs/curve.md.
            cost=converged_cost + math.log((1.0 + more) / (1.0 - fails)),
            is_tried=self._costs.record(batch_size).is_known or record.looks > 0 or batch_size in self._running,
            has_converged=record.has_converged,
        )

    def _with_running(self, observed: _ByPlace, means: Sequence[float]) -> _ByPlace:
        """The observations, and of the runs under way what is expected of them."""
        found = dict(observed)
        for size, count in self._running.items():
            i = self._index.get(size)
            if i is None:
                continue
            value, variance = observed.get(i, (0.0, math.inf))
            precision, added = 1.0 / variance, count / self._noise[size]
            total = precision + added
            found[i] = ((value * precision + means[i] * added) / total, 1.0 / total)
        return found

    def _seen(self, part: Callable[[EpochRecord], RunSums]) -> _ByPlace:
        """A part of all that is remembered of each batch size as one observation, by index."""
        found = [
            (self._index[size], observed[0], 1.0 / observed[1])
            for size, record in self._epochs.records.items()
            if (observed := part(record).observation(self._noise[size])) is not None
        ]
        return {i: (value, 1.0 / weight) for i, value, weight in on_fewer_places(found, self._octaves)}


def _noise(epochs: EpochKnowledge, sizes: Sequence[int]) -> list[float]:
    """The variance of ln epochs between runs of each batch size: its own, drawn towards what all have in common."""
    records = [epochs.record(size) for size in sizes]
    freedoms = [max(record.sums.weight - 1.0, 0.0) for record in records]
    shares = [min(1.0, _NOISE_WEIGHT / freedom) if freedom > 0.0 else 1.0 for freedom in freedoms]
    squares = sum(share * record.squares for share, record in zip(shares, records, strict=True))
    counted = sum(min(freedom, _NOISE_WEIGHT) for freedom in freedoms)
    # Equation 5 of docs/curve.md.
    pool = (_NOISE_WEIGHT * _USUAL_NOISE + squares) / (_NOISE_WEIGHT + counted)
    return [
        (_NOISE_WEIGHT * pool + record.squares) / (_NOISE_WEIGHT + freedom)
        for record, freedom in zip(records, freedoms, strict=True)
    ]


def beliefs_of(version: JobVersion, knowledge: Knowledge, running: Sequence[int] = ()) -> Beliefs:
    """What is believed on a hardware kind while trials of the batch sizes ``running`` are under way."""
    return _beliefs(version, knowledge, running) if running else _at_rest(version, knowledge)


def _going_by(version: JobVersion, knowledge: Knowledge) -> tuple[object, ...]:
    epochs, elsewhere = epochs_of(version), costs_elsewhere(version, knowledge.hardware)
    return version.spec, epochs.records, epochs.is_inherited, epoch_costs_on(knowledge), elsewhere


@remembered_by(_going_by, most=MOST_KEPT)
def _at_rest(version: JobVersion, knowledge: Knowledge) -> Beliefs:
    return _beliefs(version, knowledge, ())


def _beliefs(version: JobVersion, knowledge: Knowledge, running: Sequence[int]) -> Beliefs:
    elsewhere = costs_elsewhere(version, knowledge.hardware)
    return Beliefs(version.spec, epochs_of(version), epoch_costs_on(knowledge), elsewhere=elsewhere, running=running)
