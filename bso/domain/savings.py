"""What a job's recurrences took less than trainings with the default batch size at full power, by month.

saved = models x (what a training with the default takes) - (what all trials took, aborted ones included)

A trial counts where it is known what the default takes there, in the same version and on the same hardware kind; of its
energy, where that was measured to its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from bso.domain.baseline import Cell, Uncertain, cell_of, models_of, usual
from bso.domain.hardware import EnergyMethod
from bso.domain.ledger import UNKNOWN, Ledger, LedgerEntry

J_PER_KWH = 3.6e6
WORLD_CO2_G_PER_KWH = 473.0
"""Grams of CO2 equivalents per kWh of electricity, the world's mean of 2024 (Ember, Global Electricity Review 2025)."""
_ROUNDING = 1e-9  # of what was spent: less is nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedInMonth:
    """What the trials of one version took in one month on one hardware kind, and what they saved.

    ``usual_energy_j`` and ``usual_time_s`` are estimates of what one training with the default batch size at full power
    takes [J, s]; None: none has converged there. Of ``trials``, ``trials_unknown`` can be compared with nothing, with
    ``models_unknown`` models, and of ``unmeasured`` others only the time can: neither are in ``saved_energy_j``, the
    former not in ``saved_time_s`` either. ``energy_j`` and ``time_s`` are what those took that are in them.
    ``is_assumed``: energies are a constant power times time. Negative savings are losses.
    """

    month: str
    version_number: int
    hardware_key: str
    hardware: str
    number_of_gpus: int
    is_assumed: bool
    trials: int
    models: int
    trials_unknown: int
    models_unknown: int
    unmeasured: int
    energy_j: float
    time_s: float
    usual_energy_j: Uncertain | None
    usual_time_s: Uncertain | None
    saved_energy_j: Uncertain | None
    saved_time_s: Uncertain | None


def saved_by_month(ledger: Ledger) -> tuple[SavedInMonth, ...]:
    """What a job has saved: by month, version and hardware kind, in this order."""
    found: list[SavedInMonth] = []
    for (_, key), alike in groupby(sorted(ledger.entries, key=_population), key=_population):
        found += _saved(list(alike), ledger, hardware_key=key)
    return tuple(sorted(found, key=lambda one: (one.month, one.version_number, one.hardware_key)))


def _population(entry: LedgerEntry) -> tuple[int, str]:
    return entry.version_number, entry.hardware_key


_Usual = Mapping[tuple[Cell, int], Uncertain]


def _saved(entries: list[LedgerEntry], ledger: Ledger, *, hardware_key: str) -> Iterable[SavedInMonth]:
    """What the trials of one version on one hardware kind saved."""
    kind, power = ledger.kinds.get(hardware_key), ledger.power.get(hardware_key, {})
    default = next((one.default_batch_size for one in reversed(entries) if one.default_batch_size), UNKNOWN)
    entries = [one._replace(default_batch_size=one.default_batch_size or default) for one in entries]
    wanted = [(cell_of(one), one.default_batch_size) for one in entries]
    energies, times = (usual(models, wanted) for models in models_of(entries, power))
    for month, group in groupby(sorted(entries, key=lambda one: one.month), key=lambda one: one.month):
        alike = list(group)
        timed = [one for one in alike if _in(times, one)]
        metered = [one for one in timed if _in(energies, one)]
        yield SavedInMonth(
            month=month,
            version_number=alike[0].version_number,
            hardware_key=hardware_key,
            hardware="hardware of versions that are gone" if kind is None else kind.describe(),
            number_of_gpus=1 if kind is None else kind.number_of_gpus,
            is_assumed=kind is not None and kind.energy_method is EnergyMethod.ASSUMED,
            trials=sum(one.trials for one in alike),
            models=sum(one.models for one in alike),
            trials_unknown=sum(one.trials for one in alike) - sum(one.trials for one in timed),
            models_unknown=sum(one.models for one in alike) - sum(one.models for one in timed),
            unmeasured=sum(one.trials for one in timed) - sum(one.measured for one in metered),
            energy_j=sum((one.energy_j for one in metered), 0.0),
            time_s=sum((one.time_s for one in timed), 0.0),
            usual_energy_j=_mean_of(metered, energies),
            usual_time_s=_mean_of(timed, times),
            saved_energy_j=_saving(
                (energies[_key(one)].times(one.measured_models), one.energy_j)
                for one in metered
                if one.measured or one.energy_j
            ),
            saved_time_s=_saving((times[_key(one)].times(one.models), one.time_s) for one in timed),
        )


def _key(entry: LedgerEntry) -> tuple[Cell, int]:
    return cell_of(entry), entry.default_batch_size


def _in(found: _Usual, entry: LedgerEntry) -> bool:
    return _key(entry) in found


def _saving(parts: Iterable[tuple[Uncertain, float]]) -> Uncertain | None:
    """What models would have taken, less what was spent; None: nothing can be compared.

    The estimates of one population rest on the same trainings: their errors are added, not their squares.
    """
    every = list(parts)
    if not every:
        return None
    spent = sum(taken for _, taken in every)
    value = sum(expected.value for expected, _ in every) - spent
    error = sum(expected.error for expected, _ in every)
    return Uncertain(value=0.0 if abs(value) < _ROUNDING * spent else value, error=error)


def _mean_of(entries: list[LedgerEntry], found: _Usual) -> Uncertain | None:
    """What the default takes in a month, of whose models each counts; the last estimate where there were none."""
    models = sum(one.models for one in entries)
    if not entries:
        return None
    if not models:
        return found[_key(entries[-1])]
    parts = [found[_key(one)].times(one.models / models) for one in entries]
    return Uncertain(value=sum(one.value for one in parts), error=sum(one.error for one in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalSaved:
    """What several jobs saved together, each in some months.

    ``energy_j`` is of measured energy alone, ``assumed_energy_j`` of assumed one [J]; ``time_s`` and ``gpu_time_s``
    [s], the latter summed over the GPUs of each training. None: nothing of it is known. ``usual_energy_j`` and
    ``usual_time_s`` are what the default batch size would have taken instead, of measured energy and in all.
    ``trials`` and ``models`` count all, ``trials_unknown`` and ``models_unknown`` those that can be compared with
    nothing and are in no saving. ``unmeasured`` counts trials whose time is in the saving and whose energy is not.
    """

    trials: int = 0
    models: int = 0
    trials_unknown: int = 0
    models_unknown: int = 0
    unmeasured: int = 0
    energy_j: Uncertain | None = None
    assumed_energy_j: Uncertain | None = None
    time_s: Uncertain | None = None
    gpu_time_s: Uncertain | None = None
    usual_energy_j: float = 0.0
    usual_time_s: float = 0.0

    @property
    def energy_share(self) -> float | None:
        """The energy saved as a share of what the default would have taken (0.5: half)."""
        return None if self.energy_j is None or not self.usual_energy_j else self.energy_j.value / self.usual_energy_j

    @property
    def time_share(self) -> float | None:
        """The time saved as a share of what the default would have taken (0.5: half)."""
        return None if self.time_s is None or not self.usual_time_s else self.time_s.value / self.usual_time_s


def total_saved(found: Iterable[tuple[str, SavedInMonth]]) -> TotalSaved:
    """The total over job_ids and months.

    Savings of one job, version and hardware kind rest on the same trainings with the default, so their errors are
    added; those of different ones are independent.
    """
    every = list(found)
    comparable = [each for each in every if each[1].saved_time_s is not None]
    measured = [each for each in comparable if each[1].saved_energy_j is not None and not each[1].is_assumed]
    return TotalSaved(
        trials=sum(one.trials for _, one in every),
        models=sum(one.models for _, one in every),
        trials_unknown=sum(one.trials_unknown for _, one in every),
        models_unknown=sum(one.models_unknown for _, one in every),
        unmeasured=sum(one.unmeasured for _, one in every),
        energy_j=_added((_ground(each), each[1].saved_energy_j) for each in measured),
        assumed_energy_j=_added((_ground(each), each[1].saved_energy_j) for each in comparable if each[1].is_assumed),
        time_s=_added((_ground(each), each[1].saved_time_s) for each in comparable),
        gpu_time_s=_added(
            (_ground(each), None if (time := each[1].saved_time_s) is None else time.times(each[1].number_of_gpus))
            for each in comparable
        ),
        usual_energy_j=sum(one.energy_j + one.saved_energy_j.value for _, one in measured if one.saved_energy_j),
        usual_time_s=sum(one.time_s + one.saved_time_s.value for _, one in comparable if one.saved_time_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """What electricity and GPUs cost, and what the former emits; None: nobody has said it.

    ``price_per_kwh`` and ``price_per_gpu_hour`` in ``currency``, ``co2_g_per_kwh`` in grams of CO2 equivalents.
    """

    price_per_kwh: float | None = None
    price_per_gpu_hour: float | None = None
    currency: str = "EUR"
    co2_g_per_kwh: float = WORLD_CO2_G_PER_KWH

    def money(self, saved: TotalSaved) -> Uncertain | None:
        """The money that was saved, of measured energy and of GPU hours; None: no price, or nothing to price."""
        energy = None if self.price_per_kwh is None else _priced(saved.energy_j, self.price_per_kwh / J_PER_KWH)
        gpus = None if self.price_per_gpu_hour is None else _priced(saved.gpu_time_s, self.price_per_gpu_hour / 3600.0)
        known = [one for one in (energy, gpus) if one is not None]
        if not known:
            return None  # both rest on the same trainings: their errors are added
        return Uncertain(value=sum(one.value for one in known), error=sum(one.error for one in known))

    def co2_g(self, saved: TotalSaved) -> Uncertain | None:
        """The CO2 equivalents that were not emitted [g], of measured energy."""
        return _priced(saved.energy_j, self.co2_g_per_kwh / J_PER_KWH)


def _priced(estimate: Uncertain | None, rate: float) -> Uncertain | None:
    return None if estimate is None else estimate.times(rate)


def saved_on(months: Iterable[SavedInMonth], *, version_number: int, hardware_key: str) -> TotalSaved:
    """What one version of a job saved on one hardware kind."""
    place = (version_number, hardware_key)
    return total_saved(("", one) for one in months if (one.version_number, one.hardware_key) == place)


_Ground = tuple[str, int, str]


def _ground(each: tuple[str, SavedInMonth]) -> _Ground:
    job_id, one = each
    return job_id, one.version_number, one.hardware_key


def _added(estimates: Iterable[tuple[_Ground, Uncertain | None]]) -> Uncertain | None:
    value, errors = 0.0, dict[_Ground, float]()
    for ground, one in estimates:
        if one is not None:
            value += one.value
            errors[ground] = errors.get(ground, 0.0) + one.error
    return Uncertain(value=value, error=math.hypot(*errors.values())) if errors else None
