"""What is believed of epoch costs: how they depend on the batch size, and by how much they vary from run to run.

That variance is learnt: several hypotheses of it, each with a Gaussian process of its own of what was seen, are weighed
by how likely they make that (Rasmussen and Williams, 2006, section 5.2), and whatever is asked is integrated over them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bso.domain.curve.cost_records import MOST_FREEDOM_HANDED_ON, EpochCostKnowledge
from bso.domain.curve.gaussian_process import Posterior, Prior, Related
from bso.domain.curve.sums import RunSums
from bso.domain.replacing import replace

EPOCH_COST_PRIOR = Prior(level=10.0, slope=-0.35, level_variance=400.0, slope_variance=0.09, curve_variance=0.09)
"""ln of the cost of an epoch [J]; x in octaves from the default batch size."""
COST_CHANGE = Prior(
    level=0.0, slope=0.0, level_variance=0.5, slope_variance=1e-4, curve_variance=1e-6, own_variance=1e-4
)
"""By how much ln epoch cost may have changed where surprises show a change: of all batch sizes nearly alike."""
COST_ELSEWHERE = Prior(
    level=0.0, slope=0.0, level_variance=400.0, slope_variance=0.01, curve_variance=0.02, own_variance=0.002
)
"""By how much it may differ on another hardware kind, or in another version of a job: the level says nothing."""
SMOOTH, ROUGH = 0.005, 0.05
"""The variance of what each batch size has for itself: some 7 %, or some 22 %."""
HYPOTHESES = (
    (0.02, SMOOTH, 0.16),
    (0.035, SMOOTH, 0.18),
    (0.06, SMOOTH, 0.17),
    (0.1, SMOOTH, 0.14),
    (0.17, SMOOTH, 0.12),
    (0.3, SMOOTH, 0.09),
    (0.5, SMOOTH, 0.06),
    (0.8, SMOOTH, 0.03),
    (1.3, SMOOTH, 0.01),
    (0.03, ROUGH, 0.02),
    (0.15, ROUGH, 0.02),
)
"""Standard deviations of ln epoch cost between runs, what batch sizes have for themselves, and how likely both are."""
SPIKE = 1.0
"""Variance of ln of how many times more than usual a spike costs: often e or 1 / e, hardly ever 20."""
_LEAST_SHARE = 0.01  # of the most likely hypothesis: less likely ones are left out
_LEAST_EXCESS = 2.0  # standard deviations: what costs less is no spike
_EXCLUDED = 25.0  # ln of how much less likely


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hypothesis:
    """A variance between runs, and what is believed if it is the right one.

    ``evidence`` is ln of how likely it is, but for a constant; ``spikes`` are the places whose only run was a spike.
    """

    variance: float
    evidence: float
    process: Posterior
    spikes: Collection[int]


class CostBeliefs:
    """The beliefs about epoch costs of batch sizes at ``places`` (octaves), which ``index`` numbers by batch size.

    ``elsewhere`` is what is known of them on another hardware kind.
    """

    def __init__(
        self,
        places: tuple[float, ...],
        index: Mapping[int, int],
        knowledge: EpochCostKnowledge,
        elsewhere: EpochCostKnowledge | None = None,
    ) -> None:
        seen = _Seen(places=places, index=index, knowledge=knowledge, elsewhere=elsewhere)
        every = [one for possible in _possible(knowledge, elsewhere) for one in _hypotheses(seen, *possible)]
        most = max(one.evidence for one in every)
        likely = [one for one in every if one.evidence > most + math.log(_LEAST_SHARE)]
        total = sum(math.exp(one.evidence - most) for one in likely)
        self._weighed = [(math.exp(one.evidence - most) / total, one) for one in likely]
        self._covariances: dict[tuple[int, int], float] = {}

    @cached_property
    def noise(self) -> float:
        """The variance of ln epoch cost between runs of a batch size."""
        return sum(weight * one.variance for weight, one in self._weighed)

    @cached_property
    def means(self) -> list[float]:
        """The mean ln epoch cost [J] at each place."""
        every = [[weight * mean for mean in one.process.means] for weight, one in self._weighed]
        return [sum(at_place) for at_place in zip(*every, strict=True)]

    def variance(self, i: int) -> float:
        """The variance of what is believed of that mean."""
        return self.covariance(i, i)

    def covariance(self, i: int, j: int) -> float:
        """The covariance of what is believed of the means at two places."""
        found = self._covariances.get((i, j))
        if found is None:
            at_i, at_j = self.means[i], self.means[j]
            found = self._covariances[i, j] = self._covariances[j, i] = sum(
                weight * (one.process.covariance(i, j) + (one.process.means[i] - at_i) * (one.process.means[j] - at_j))
                for weight, one in self._weighed
            )
        return found

    def ratio_variance(self, i: int, j: int) -> float:
        """The variance of ln of the ratio of the costs at two places."""
        return max(0.0, self.variance(i) + self.variance(j) - 2.0 * self.covariance(i, j))

    def learnt(self, i: int, j: int, runs: int, more: float = 0.0) -> float:
        """By how much so many runs at ``i`` are expected to reduce that; ``more``: what each varies by besides."""
        return sum(weight * _reduction(one, i, j, runs, more) for weight, one in self._weighed)

    def spike_probability(self, i: int) -> float:
        """How likely it is that there was one run at a place, and that it was a spike."""
        return sum(weight for weight, one in self._weighed if i in one.spikes)


def _reduction(one: _Hypothesis, i: int, j: int, runs: int, more: float) -> float:
    variance = one.process.variance(i)
    return (variance - one.process.covariance(i, j)) ** 2 / (variance + (one.variance + more) / runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was seen, by the number of the place."""

    places: tuple[float, ...]
    index: Mapping[int, int]
    knowledge: EpochCostKnowledge
    elsewhere: EpochCostKnowledge | None

    @property
    def once(self) -> set[int]:
        """Where there has been one run since the last change."""
        records = self.knowledge.records.items()
        return {self.index[size] for size, record in records if 0.0 < record.sums.weight <= 1.0}

    def process(self, variance: float, own: float, spikes: Collection[int]) -> Posterior:
        """The belief under a variance between runs, and one of what each batch size has for itself."""
        records = self.knowledge.records.items()
        now = self._observed(((size, record.sums) for size, record in records), variance)
        for i in spikes:
            value, noise = now[i]
            now[i] = (value, noise + SPIKE)
        before = self._observed(((size, record.before) for size, record in records), variance)
        change = COST_ELSEWHERE if self.knowledge.is_inherited else COST_CHANGE
        related = [Related(observed=before, change=change)]
        if self.elsewhere is not None:
            others = self._observed(self.elsewhere.compared.items(), variance)
            related.append(Related(observed=others, change=COST_ELSEWHERE))
        return Posterior(replace(EPOCH_COST_PRIOR, own_variance=own), self.places, now, related)

    def _observed(self, sums: Iterable[tuple[int, RunSums]], variance: float) -> dict[int, tuple[float, float]]:
        found = {self.index[size]: each.observation(variance) for size, each in sums}
        return {i: seen for i, seen in found.items() if seen is not None}


def _possible(
    knowledge: EpochCostKnowledge, elsewhere: EpochCostKnowledge | None
) -> Sequence[tuple[float, float, float]]:
    """Variances between runs, those of what batch sizes have for themselves, and ln of how likely both are.

    Only such as runs of the same batch size do not exclude: here or, while few are known here, elsewhere.
    """
    squares, freedom = knowledge.squares, knowledge.freedom
    missing = max(0.0, MOST_FREEDOM_HANDED_ON - freedom)
    if elsewhere is not None and elsewhere.freedom:
        share = min(1.0, missing / elsewhere.freedom)
        squares, freedom = squares + share * elsewhere.squares, freedom + share * elsewhere.freedom
    weighed = []
    for deviation, own, likely in HYPOTHESES:
        variance = deviation * deviation
        between_runs = -0.5 * (freedom * math.log(variance) + squares / variance)
        weighed.append((variance, own, math.log(likely) + between_runs))
    most = max(evidence for _, _, evidence in weighed)
    return [one for one in weighed if one[2] > most - _EXCLUDED]


def _hypotheses(seen: _Seen, variance: float, own: float, evidence: float) -> Iterator[_Hypothesis]:
    """That no run was a spike, and, where single runs cost far more than all others let expect, that these were."""
    rate, once = seen.knowledge.spike_rate, seen.once
    process = seen.process(variance, own, ())
    evidence += len(once) * math.log(1.0 - rate)
    yield _Hypothesis(variance=variance, evidence=evidence + process.log_evidence, process=process, spikes=())
    if not once:
        return
    spikes = {i for i, excess, left in process.left_out() if i in once and excess > _LEAST_EXCESS * math.sqrt(left)}
    if spikes:
        evidence += len(spikes) * math.log(rate / (1.0 - rate))
        process = seen.process(variance, own, spikes)
        yield _Hypothesis(variance=variance, evidence=evidence + process.log_evidence, process=process, spikes=spikes)
