"""What was saved in words and figures: Wh, hours, CO2 and money, each with its interval."""

from __future__ import annotations

from bso.domain.baseline import Uncertain
from bso.domain.quantities import NOTHING, counted, figure, percent, seconds_within, within
from bso.domain.savings import Tariff, TotalSaved


def in_words(total: TotalSaved) -> str:
    """What was saved as a sentence; empty where nothing can be compared."""
    if total.time_s is None:
        return ""
    parts = []
    if total.energy_j is not None:
        parts.append(f"{energy_in_words(total.energy_j)} of energy ({percent(total.energy_share)})")
    if total.assumed_energy_j is not None:
        parts.append(f"{energy_in_words(total.assumed_energy_j)} of assumed energy")
    parts.append(f"{time_in_words(total.time_s)} of time ({percent(total.time_share)})")
    models, trials = total.models - total.models_unknown, total.trials - total.trials_unknown
    return (
        f"Saved, against the default batch size at full power: {' and '.join(parts)}, by {counted(models, 'model')} in "
        f"{counted(trials, 'trial')}."
    )


def energy_in_words(estimate: Uncertain | None) -> str:
    """An energy [J] with its interval of about 95 %: ``12.3 ± 1.1 kWh``."""
    return _in_words(None if estimate is None else estimate.times(1 / 3600.0), "Wh")


def time_in_words(estimate: Uncertain | None) -> str:
    """A time [s] with its interval of about 95 %: ``2 h 05 min ± 34 min 12 s``."""
    return NOTHING if estimate is None else seconds_within(estimate.value, estimate.half_interval)


def co2_in_words(estimate: Uncertain | None) -> str:
    """A mass [g] with its interval of about 95 %: ``5.8 ± 0.5 kg``."""
    return _in_words(estimate, "g")


def money_in_words(estimate: Uncertain | None, tariff: Tariff) -> str:
    """An amount with its interval of about 95 %: ``25.3 ± 2.5 EUR``."""
    if estimate is None:
        return NOTHING
    return f"{figure(estimate.value)} ± {figure(estimate.half_interval, 2)} {tariff.currency}"


def _in_words(estimate: Uncertain | None, unit: str) -> str:
    return NOTHING if estimate is None else within(estimate.value, estimate.half_interval, unit)
