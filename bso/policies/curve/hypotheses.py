"""What is expected before any run, and what varies: hypotheses, weighed by how likely they make what was seen.

How much of its own each batch size has, how far another version's epochs are right, and by how much epoch costs vary
from run to run are learnt from the job: each hypothesis has a Gaussian process of its own of what was seen, which gives
its evidence (Rasmussen and Williams, 2006, section 5.2); whatever is asked is integrated over them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bso.domain.frozen_values import replace
from bso.policies.curve.cost_records import MOST_FREEDOM_HANDED_ON, EpochCostKnowledge
from bso.policies.curve.epoch_records import RunSums, on_fewer_places
from bso.policies.curve.gaussian_process import MOST_COLUMNS, Observations, Posterior, Prior, Related

EPOCHS_PRIOR = Prior(
    level=math.log(10.0),
    slope=0.2,
    level_variance=9.0,
    slope_variance=0.09,
    curve_variance=0.1,
    length_scale=3.0,
)
"""ln epochs to the target; x in octaves from the default batch size. What each has of its own, the job shows."""
OWN_VARIANCES = (0.0, 0.005, 0.02)
"""By how much ln epochs of a batch size may differ from a smooth curve: not at all, by some 7 %, by some 14 %.

Under a smooth curve alone its neighbours outvote what a batch size has shown itself, and near ties are never
distinguished; where batch sizes have much of their own, each must be tried.
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
"""By how much ln epochs may have changed where surprises show a change: all alike, or some more than others."""
INHERITED = (
    (replace(EPOCHS_CHANGE, slope_variance=0.0025, curve_variance=0.005, own_variance=0.002), 0.9),
    (EPOCHS_CHANGE, 0.1),
)
"""By how much ln epochs may differ from what is inherited, and how likely that is: nearly all alike, or not."""

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
PROBES = (
    (
        Prior(level=0.0, slope=0.0, level_variance=0.25, slope_variance=1e-4, curve_variance=4e-4, own_variance=0.005),
        0.9,
    ),
    (
        Prior(level=0.0, slope=0.0, level_variance=0.25, slope_variance=0.04, curve_variance=0.04, own_variance=0.04),
        0.1,
    ),
)
"""By how much it may differ from what was probed, and how likely that is: what probes have in common, their level, may
be wrong, for they share the run that they were made in; how batch sizes compare is known to 7 %, or to 20 %."""
_NO_PROBES = ((None, 1.0),)
UNCOUNTED = replace(COST_CHANGE, level_variance=400.0)
"""By how much it may differ from that of runs whose epochs nobody counted: only what is for all alike is unknown.

How their costs in all compare is known; what is wrong in the guess of their epochs is wrong the other way round here.
"""
SMOOTH, ROUGH = 0.005, 0.05
"""The variance of what each batch size has for itself: some 7 %, or some 22 %."""
HYPOTHESES = (
    (0.02, SMOOTH, 0.15),
    (0.035, SMOOTH, 0.17),
    (0.06, SMOOTH, 0.16),
    (0.1, SMOOTH, 0.14),
    (0.17, SMOOTH, 0.12),
    (0.3, SMOOTH, 0.09),
    (0.5, SMOOTH, 0.06),
    (0.8, SMOOTH, 0.03),
    (1.3, SMOOTH, 0.01),
    (0.03, ROUGH, 0.02),
    (0.15, ROUGH, 0.02),
    (0.3, ROUGH, 0.02),
    (0.5, ROUGH, 0.01),
)
"""Standard deviations of ln epoch cost between runs, what batch sizes have for themselves, and how likely both are."""
SPIKE = 1.0
"""Variance of ln of how many times more than usual a spike costs: often e or 1 / e, hardly ever 20."""
_LEAST_EXCESS = 2.0  # standard deviations: what costs less is no spike
_LEAST = 1e-6  # variance of a probe
_EXCLUDED = 25.0  # ln of how much less likely


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
        possible = _possible(knowledge, elsewhere)
        self._parts = [part for trust in _trusts(knowledge) for part in _believed(seen, possible, trust)]
        evidence = np.concatenate([one.hypotheses.evidence for one in self._parts])
        weights = np.exp(evidence - evidence.max())
        self._weights = weights / weights.sum()
        self._noises = np.concatenate([one.hypotheses.variances for one in self._parts])
        self._means = np.concatenate([one.process.means for one in self._parts])
        self._variances = np.concatenate([one.process.variances for one in self._parts])
        means = self._weights @ self._means
        self._off = self._means - means
        self.noise = float(self._weights @ self._noises)
        """The variance of ln epoch cost between runs of a batch size."""
        self.means: list[float] = means.tolist()
        """The mean ln epoch cost [J] at each place."""
        self.variances: list[float] = (self._weights @ (self._variances + self._off**2)).tolist()
        """The variances of what is believed of these means."""
        spikes = np.concatenate([one.spikes for one in self._parts])
        self.spike_probabilities: list[float] = (self._weights @ spikes).tolist()
        """How likely it is that there was one run at a place, and that it was a spike."""
        self._columns: dict[int, tuple[NDArray[np.float64], list[float]]] = {}

    def covariance(self, i: int, j: int) -> float:
        """The covariance of what is believed of the means at two places."""
        return self._column(j)[1][i]

    def ratio_variance(self, i: int, j: int) -> float:
        """The variance of ln of the ratio of the costs at two places."""
        return max(0.0, self.variances[i] + self.variances[j] - 2.0 * self.covariance(i, j))

    def learnt(self, i: int, j: int, runs: Sequence[int], more: float = 0.0) -> list[float]:
        """By how much each of these numbers of runs at ``i`` is expected to reduce that.

        ``more``: what each run varies by besides.
        """
        variances = self._variances[:, i]
        resolved = (variances - self._column(j)[0][:, i]) ** 2
        noises = (self._noises + more) / np.array(runs, dtype=np.float64)[:, None]
        found: list[float] = ((resolved / (variances + noises)) @ self._weights).tolist()
        return found

    def _column(self, j: int) -> tuple[NDArray[np.float64], list[float]]:
        """The covariances of what is believed at all places with that at one: by each hypothesis, and by all."""
        found = self._columns.get(j)
        if found is None:
            if len(self._columns) >= MOST_COLUMNS:
                self._columns.clear()
            each = np.concatenate([one.process.covariances(j) for one in self._parts])
            both: list[float] = (self._weights @ (each + self._off * self._off[:, j, None])).tolist()
            found = self._columns[j] = each, both
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hypotheses:
    """h hypotheses: ``variances`` (h,) between runs, and of what batch sizes have for themselves, ``own`` (h,).

    ``evidence`` (h,) is ln of how likely each is, but for a constant.
    """

    variances: NDArray[np.float64]
    own: NDArray[np.float64]
    evidence: NDArray[np.float64]

    def with_evidence(self, more: NDArray[np.float64]) -> _Hypotheses:
        """The same, each with so much more evidence."""
        return replace(self, evidence=self.evidence + more)

    def chosen(self, rows: NDArray[np.intp]) -> _Hypotheses:
        """Some of them."""
        return _Hypotheses(variances=self.variances[rows], own=self.own[rows], evidence=self.evidence[rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Believed:
    """What is believed by h hypotheses; ``spikes`` (h, p) says at which places the only run was a spike."""

    hypotheses: _Hypotheses
    process: Posterior
    spikes: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What was seen, by the number of the place."""

    places: tuple[float, ...]
    index: Mapping[int, int]
    knowledge: EpochCostKnowledge
    elsewhere: EpochCostKnowledge | None

    @property
    def once(self) -> NDArray[np.bool_]:
        """At which places there has been one run since the last change, (p,)."""
        found = np.zeros(len(self.places), dtype=np.bool_)
        for size, record in self.knowledge.records.items():
            found[self.index[size]] = 0.0 < record.sums.weight <= 1.0
        return found

    def process(self, given: _Hypotheses, spikes: NDArray[np.bool_], trust: Prior | None) -> Posterior:
        """The belief under each hypothesis, where the only runs at some places (h, p) were spikes.

        ``trust``: by how much costs may differ from what was probed.
        """
        records = self.knowledge.records.items()
        now = self._observed(((size, record.sums) for size, record in records), given.variances)
        now = replace(now, noises=now.noises + SPIKE * spikes[:, now.at])
        before = self._observed(((size, record.before) for size, record in records), given.variances)
        change = COST_ELSEWHERE if self.knowledge.is_inherited else COST_CHANGE
        change = UNCOUNTED if self.knowledge.is_uncounted else change
        related = [Related(observed=before, change=change)]
        if self.elsewhere is not None:
            others = self._observed(self.elsewhere.compared.items(), given.variances)
            related.append(Related(observed=others, change=COST_ELSEWHERE))
        if trust is not None:
            related.append(Related(observed=self._probed, change=trust))
        return Posterior(EPOCH_COST_PRIOR, self.places, now, related, own_variances=given.own)

    @property
    def _probed(self) -> Observations:
        probes = self.knowledge.probes.items()
        every = [(self.index[size], one.value, 1.0 / max(one.variance, _LEAST)) for size, one in probes]
        return Observations.of({i: (value, 1.0 / weight) for i, value, weight in on_fewer_places(every, self.places)})

    def _observed(self, runs: Iterable[tuple[int, RunSums]], variances: NDArray[np.float64]) -> Observations:
        """The mean of the runs of each batch size, and the variance of that by each hypothesis."""
        every = [(self.index[size], sums.mean, sums.weight) for size, sums in runs if sums.weight > 0.0]
        found = sorted(on_fewer_places(every, self.places))
        at, means, weights = zip(*found, strict=True) if found else ((), (), ())
        noises = variances[:, None] / np.array(weights, dtype=np.float64)
        return Observations(at=np.array(at, dtype=np.intp), values=np.array(means, dtype=np.float64), noises=noises)


def _possible(knowledge: EpochCostKnowledge, elsewhere: EpochCostKnowledge | None) -> _Hypotheses:
    """Those that runs of the same batch size do not exclude: here or, while few are known here, elsewhere."""
    squares, freedom = knowledge.squares, knowledge.freedom
    missing = max(0.0, MOST_FREEDOM_HANDED_ON - freedom)
    if elsewhere is not None and elsewhere.freedom:
        share = min(1.0, missing / elsewhere.freedom)
        squares, freedom = squares + share * elsewhere.squares, freedom + share * elsewhere.freedom
    deviations, own, likely = np.array(HYPOTHESES).T
    variances = deviations**2
    evidence = np.log(likely) - 0.5 * (freedom * np.log(variances) + squares / variances)
    every = _Hypotheses(variances=variances, own=own, evidence=evidence)
    return every.chosen(np.nonzero(evidence > evidence.max() - _EXCLUDED)[0])


def _trusts(knowledge: EpochCostKnowledge) -> tuple[tuple[Prior | None, float], ...]:
    return PROBES if knowledge.probes else _NO_PROBES


def _believed(seen: _Seen, given: _Hypotheses, trusted: tuple[Prior | None, float]) -> Iterator[_Believed]:
    """That no run was a spike, and, where single runs cost far more than all others let expect, that these were."""
    trust, likely = trusted
    rate, once = seen.knowledge.spike_rate, seen.once
    given = given.with_evidence(once.sum() * math.log(1.0 - rate) + math.log(likely))
    none = np.zeros((len(given.variances), len(seen.places)), dtype=np.bool_)
    process = seen.process(given, none, trust)
    yield _Believed(hypotheses=given.with_evidence(process.log_evidence), process=process, spikes=none)
    if not once.any():
        return
    excess, left = process.left_out()
    spikes = none.copy()
    spikes[:, process.at] = once[process.at] & (excess > _LEAST_EXCESS * np.sqrt(left))
    rows = np.nonzero(spikes.any(axis=1))[0]
    if len(rows):
        given, spikes = given.chosen(rows), spikes[rows]
        given = given.with_evidence(spikes.sum(axis=1) * math.log(rate / (1.0 - rate)))
        process = seen.process(given, spikes, trust)
        yield _Believed(hypotheses=given.with_evidence(process.log_evidence), process=process, spikes=spikes)


def prior_of_epochs(places: tuple[float, ...], observed: Observations, before: Observations) -> Prior:
    """The prior of ln epochs: what batch sizes have of their own is the mean of OWN_VARIANCES, weighed by the evidence.

    All are as likely beforehand. What was seen before a change counts as of a curve like any other.
    """
    own_variances = np.array(OWN_VARIANCES)
    evidence = np.zeros(len(own_variances))
    for seen in (observed, before):
        if len(seen.at):
            evidence += Posterior(EPOCHS_PRIOR, places, seen, own_variances=own_variances).log_evidence
    return replace(EPOCHS_PRIOR, own_variance=float(own_variances @ _shares(evidence)))


def change_since_inherited(
    prior: Prior, places: tuple[float, ...], observed: Observations, inherited: Observations
) -> Prior:
    """By how much epochs may differ from what is inherited: the mean of INHERITED, weighed by the evidence."""
    evidence = [
        math.log(likely) + Posterior(prior, places, observed, [Related(observed=inherited, change=change)]).log_evidence
        for change, likely in INHERITED
    ]
    shares = _shares(np.concatenate(evidence))
    slope, curve, own = (
        sum(float(share) * getattr(change, name) for share, (change, _) in zip(shares, INHERITED, strict=True))
        for name in ("slope_variance", "curve_variance", "own_variance")
    )
    return replace(EPOCHS_CHANGE, slope_variance=slope, curve_variance=curve, own_variance=own)


def _shares(evidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """How likely each of several hypotheses is, from ln of how likely they make what was seen, but for a constant."""
    weights = np.exp(evidence - evidence.max())
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares
