"""What a trial's end says of epochs. All that is fitted here is written into the event."""

from __future__ import annotations

import math

from bso.policies.curve import normal
from bso.policies.curve.beliefs import Belief, Beliefs
from bso.policies.curve.epoch_records import EpochRecord, LearntEpochs
from bso.policies.curve.hypotheses import EPOCHS_CHANGE
from bso.policies.curve.validation import Approach, Forecast, ratios

_LEAST_SHARE = 1e-3
_KEPT = 0.1  # at a change: of what was known before an earlier one
_LONGEST = 3.0  # standard deviations beyond the expectation that a censored run is believed to have had left
_RARE = 1e-6


def converged(
    beliefs: Beliefs, record: EpochRecord, batch_size: int, epochs: float, approach: Approach
) -> LearntEpochs:
    """A run that reached the target. Surprises of a known batch size add up: enough of them show a change."""
    belief = beliefs.of(batch_size)
    if not belief.has_converged:
        return LearntEpochs(ln_epochs=math.log(epochs), variance=None, failed=0.0, ratios=ratios(approach, epochs))
    deviation = math.sqrt(belief.variance + belief.noise)
    surprises = record.surprises.after_run(math.log(epochs) - belief.epochs, deviation)
    return LearntEpochs(
        ln_epochs=math.log(epochs),
        variance=None,
        failed=0.0,
        kept=_KEPT if surprises.is_change else 1.0,
        surprises=surprises.left,
        ratios=ratios(approach, epochs),
    )


def censored(
    beliefs: Beliefs,
    record: EpochRecord,
    batch_size: int,
    epochs: float,
    interval: float,
    *,
    may_have_failed: bool,
    has_incumbent: bool,
    forecast: Forecast | None = None,
) -> LearntEpochs:
    """A run that ended before its target: an observation with the moments of what is now believed of it.

    ``may_have_failed``: it was not ended from outside, so perhaps it would never have converged; the more likely that
    is, the less it says of how long a run takes that does. ``forecast`` is what its validation curve says.
    """
    belief = beliefs.of(batch_size)
    reached = math.log(epochs + 0.5 * interval)
    believed, surprises = belief.variance, record.surprises
    if may_have_failed and belief.has_converged:
        usual = math.sqrt(believed + belief.noise)
        surprises = surprises.after_stop(reached - belief.epochs, usual, belief.fails)
    if surprises.is_change:
        believed += EPOCHS_CHANGE.level_variance
    value, variance, longer = _observed_beyond(reached, belief, believed)
    if forecast is not None:
        value, variance = _with_forecast(belief, believed, reached, forecast) or (value, variance)
    if not may_have_failed:
        return LearntEpochs(ln_epochs=value, variance=variance, failed=0.0, surprises=surprises)
    failed = belief.fails / (belief.fails + (1.0 - belief.fails) * longer)
    return LearntEpochs(
        ln_epochs=value,
        variance=variance / max(1.0 - failed, _LEAST_SHARE),
        failed=failed if has_incumbent else 1.0,
        kept=_KEPT if surprises.is_change else 1.0,
        surprises=surprises.left,
    )


def _observed_beyond(reached: float, belief: Belief, believed: float) -> tuple[float, float, float]:
    """The observation of a run that is longer than ``reached``, its variance, and how likely such a run was."""
    total = believed + belief.noise
    deviation = math.sqrt(total)
    z = (reached - belief.epochs) / deviation
    longer = max(normal.above(z), 1e-9)
    # Equation 15 of docs/curve.md.
    hazard = normal.density(z) / longer
    value = reached + deviation
    if longer > _RARE:
        value = min(belief.epochs + deviation / max(hazard - z, 1e-9), belief.epochs + _LONGEST * deviation)
    variance = max(total / (hazard * (hazard - z) + 1e-12) - believed, 0.25 * belief.noise)
    return value, variance, longer


def _with_forecast(belief: Belief, believed: float, reached: float, forecast: Forecast) -> tuple[float, float] | None:
    """The observation that turns the belief about a run into that with its curve; None: it refutes its curve."""
    own = 1.0 / (believed + belief.noise)
    expected, deviation = forecast.combined(belief.epochs, math.sqrt(believed + belief.noise))
    z = (reached - expected) / deviation
    if z > _LONGEST:
        return None
    hazard = normal.density(z) / normal.above(z)
    mean = expected + deviation * hazard
    precision = 1.0 / (deviation**2 * (1.0 - hazard * (hazard - z)))
    added = precision - own
    return (precision * mean - own * belief.epochs) / added, 1.0 / added + belief.noise
