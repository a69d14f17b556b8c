"""What is expected of epochs before any run, and by how much they may differ from what they were elsewhere."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bso.domain.curve.gaussian_process import Observations, Posterior, Prior, Related
from bso.domain.frozen_values import replace

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
