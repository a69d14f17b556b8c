"""What is expected of epochs before any run, and by how much they may differ from what they were elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable

from bso.domain.curve.gaussian_process import Observations, Posterior, Prior, Related
from bso.domain.replacing import replace

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


def prior_of_epochs(places: tuple[float, ...], observed: Observations, before: Observations) -> Prior:
    """The prior of ln epochs: what batch sizes have of their own is the mean of OWN_VARIANCES, weighed by the evidence.

    All are as likely beforehand. What was seen before a change counts as of a curve like any other.
    """
    priors = [replace(EPOCHS_PRIOR, own_variance=own) for own in OWN_VARIANCES]
    weights = _shares(
        sum(Posterior(prior, places, seen).log_evidence for seen in (observed, before)) for prior in priors
    )
    own = sum(weight * prior.own_variance for weight, prior in zip(weights, priors, strict=True))
    return replace(EPOCHS_PRIOR, own_variance=own)


def change_since_inherited(
    prior: Prior, places: tuple[float, ...], observed: Observations, inherited: Observations
) -> Prior:
    """By how much epochs may differ from what is inherited: the mean of INHERITED, weighed by the evidence."""
    weights = _shares(
        math.log(likely)
        + Posterior(prior, places, observed, (Related(observed=inherited, change=change),)).log_evidence
        for change, likely in INHERITED
    )
    slope, curve, own = (
        sum(weight * getattr(change, name) for weight, (change, _) in zip(weights, INHERITED, strict=True))
        for name in ("slope_variance", "curve_variance", "own_variance")
    )
    return replace(EPOCHS_CHANGE, slope_variance=slope, curve_variance=curve, own_variance=own)


def _shares(evidence: Iterable[float]) -> list[float]:
    """How likely each of several hypotheses is, from ln of how likely they make what was seen, but for a constant."""
    found = list(evidence)
    most = max(found)
    weights = [math.exp(one - most) for one in found]
    return [weight / sum(weights) for weight in weights]
