"""A job's ledger: what its trials took in each month. It is added to when a trial ends; savings are made of it.

It is a part of the job's state, which is written with each trial that begins or ends. So entries are tuples, which take
half as many bytes as objects with named fields, and old months are added up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from bso.domain.commands import PowerMeasurement
from bso.domain.frozen_values import replace
from bso.domain.hardware import HardwareKind
from bso.domain.progress import undistorted
from bso.domain.trial import Outcome, Trial

Place = tuple[str, int, str, int, int]
"""The first fields of an entry: month, version, key of the hardware kind, change points, batch size."""

EARLIER = ""
"""Instead of a month: months that are so long ago that they were added up."""
OTHER_SIZES = 0
"""Instead of a batch size: those that the job never had, which a client out of reach may have chosen, and in EARLIER
all but the default."""
UNKNOWN = 0
"""Instead of a default batch size, or of a version: it is not known any more."""
MOST_ENTRIES = 200


class Sums(NamedTuple):
    """A sum and a sum of squares: of energies [J], or of times [s]."""

    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, value: float) -> Sums:
        """Those of one value."""
        return cls(total=float(value), squares=float(value * value))

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(total=self.total + other.total, squares=self.squares + other.squares)


_NONE = Sums()


class LedgerEntry(NamedTuple):
    """What the trials of one batch size took that ended in one month (``2026-11``, by UTC), on one hardware kind.

    ``change_points`` were known until then; ``default_batch_size`` is that of the time. ``time_s`` counts all trials,
    ``models`` those that converged, ``model_time`` [s] the latter alone and without what profiling power limits took.
    ``measured``, ``measured_models``, ``energy_j`` and ``model_energy`` [J] are the same of those trials whose energy
    was measured to their end.
    """

    month: str
    version_number: int
    hardware_key: str
    change_points: int
    batch_size: int
    default_batch_size: int
    trials: int = 0
    models: int = 0
    measured: int = 0
    measured_models: int = 0
    energy_j: float = 0.0
    time_s: float = 0.0
    model_energy: Sums = _NONE
    model_time: Sums = _NONE

    @property
    def place(self) -> Place:
        """What no two entries have in common."""
        return self[:5]

    def plus(self, other: LedgerEntry) -> LedgerEntry:
        """Both together, in the place of this one."""
        return self._replace(
            default_batch_size=other.default_batch_size or self.default_batch_size,
            trials=self.trials + other.trials,
            models=self.models + other.models,
            measured=self.measured + other.measured,
            measured_models=self.measured_models + other.measured_models,
            energy_j=self.energy_j + other.energy_j,
            time_s=self.time_s + other.time_s,
            model_energy=self.model_energy.plus(other.model_energy),
            model_time=self.model_time.plus(other.model_time),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerChoice:
    """What was measured of a batch size under its highest power limit, and under that at which a sample costs least."""

    highest: PowerMeasurement
    chosen: PowerMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All entries of a job, in the order of their places; it outlives the job's versions, and its deletion.

    ``kinds`` are the hardware kinds of the entries by their keys. ``power`` holds what was measured of batch sizes
    under power limits, by key of the hardware kind and batch size.
    """

    entries: tuple[LedgerEntry, ...] = ()
    kinds: Mapping[str, HardwareKind] = field(default_factory=dict)
    power: Mapping[str, Mapping[int, PowerChoice]] = field(default_factory=dict)

    def with_ended(
        self, before: Trial, ended: Trial, *, batch_size: int, default_batch_size: int, change_points: int
    ) -> Ledger:
        """The ledger with what a trial took until its end; of one that had ended ``before``, with what came since.

        The latter is added to the last entry of the trial's month, version, hardware kind and batch size.
        """
        is_new = before.is_active
        is_model = ended.last_outcome is Outcome.CONVERGED and (is_new or before.last_outcome is not Outcome.CONVERGED)
        is_measured = ended.is_energy_complete and not _goes_on_unmeasured(before, ended)
        usual = undistorted(ended.totals, ended.profiled)
        entry = LedgerEntry(
            month=month_of(ended),
            version_number=ended.version_number,
            hardware_key=ended.hardware.key,
            change_points=change_points,
            batch_size=batch_size,
            default_batch_size=default_batch_size,
            trials=int(is_new),
            models=int(is_model),
            measured=int(is_measured and is_new),
            measured_models=int(is_measured and is_model),
            energy_j=float(ended.energy_j - (0.0 if is_new else before.energy_j)) if is_measured else 0.0,
            time_s=float(ended.time_s - (0.0 if is_new else before.time_s)),
            model_energy=Sums.of(usual.energy_j) if is_measured and is_model else _NONE,
            model_time=Sums.of(usual.time_s) if is_model else _NONE,
        )
        return self._with(entry if is_new else self._where_entered(entry), ended.hardware)

    def with_probing(
        self,
        hardware: HardwareKind,
        *,
        month: str,
        version_number: int,
        change_points: int,
        batch_size: int,
        default_batch_size: int,
        time_s: float,
        energy_j: float,
    ) -> Ledger:
        """The ledger with what probing epoch costs took in the course of a trial, beside the trial itself."""
        entry = LedgerEntry(
            month=month,
            version_number=version_number,
            hardware_key=hardware.key,
            change_points=change_points,
            batch_size=batch_size,
            default_batch_size=default_batch_size,
            energy_j=float(energy_j),
            time_s=float(time_s),
        )
        return self._with(entry, hardware)

    def with_power(
        self, hardware: HardwareKind, batch_size: int, measured: Iterable[PowerMeasurement], *, eta_knob: float
    ) -> Ledger:
        """The ledger with what was measured of a batch size under power limits; what cannot be used is left out."""
        usable = [one for one in measured if one.samples_per_s > 0.0 and one.average_power_w > 0.0]
        if not usable:
            return self

        def cost_of_sample(one: PowerMeasurement) -> float:
            return (eta_knob * one.average_power_w + (1.0 - eta_knob) * hardware.max_power_w) / one.samples_per_s

        choice = PowerChoice(
            highest=max(usable, key=lambda one: one.power_limit_w), chosen=min(usable, key=cost_of_sample)
        )
        known = {**self.power.get(hardware.key, {}), batch_size: choice}
        return replace(self, power={**self.power, hardware.key: known})

    def _with(self, entry: LedgerEntry, hardware: HardwareKind) -> Ledger:
        at = bisect_left(self.entries, entry.place, key=_place_of)
        is_known = at < len(self.entries) and self.entries[at].place == entry.place
        changed = self.entries[at].plus(entry) if is_known else entry
        kept = (*self.entries[:at], changed, *self.entries[at + is_known :])
        kinds = self.kinds if hardware.key in self.kinds else {**self.kinds, hardware.key: hardware}
        if len(kept) > MOST_ENTRIES:
            kept = _fewer(kept)
            kinds = {key: kinds[key] for key in kinds if any(one.hardware_key == key for one in kept)}
        return replace(self, entries=kept, kinds=kinds)

    def _where_entered(self, entry: LedgerEntry) -> LedgerEntry:
        alike = (entry.month, entry.version_number, entry.hardware_key)
        places = [one for one in self.entries if one[:3] == alike and one.batch_size == entry.batch_size]
        return entry._replace(change_points=places[-1].change_points) if places else entry


def month_of(trial: Trial) -> str:
    """The month in which a trial has ended, by UTC."""
    ended_at: datetime = (trial.ended_at or trial.started_at).astimezone(UTC)
    return f"{ended_at.year:04}-{ended_at.month:02}"


def _goes_on_unmeasured(before: Trial, ended: Trial) -> bool:
    """Whether time has passed since the last report of which no energy was measured."""
    return ended.time_s > before.time_s and ended.energy_j == before.energy_j


def _place_of(entry: LedgerEntry) -> Place:
    return entry.place


def _fewer(entries: tuple[LedgerEntry, ...]) -> tuple[LedgerEntry, ...]:
    """The entries, their oldest months added up until they are few enough; the last two months stay.

    If that is not enough, the oldest versions are added up to one of which nothing is known but its sums.
    """
    months = sorted({entry.month for entry in entries} - {EARLIER})
    for month in months[:-2]:
        entries = _merged(_earlier(entry) if entry.month == month else entry for entry in entries)
        if len(entries) <= MOST_ENTRIES:
            return entries
    for version in sorted({entry.version_number for entry in entries} - {UNKNOWN})[:-1]:
        entries = _merged(_gone(entry) if entry.version_number == version else entry for entry in entries)
        if len(entries) <= MOST_ENTRIES:
            break
    return entries


def _merged(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """The entries, those of the same place added up."""
    found: dict[Place, LedgerEntry] = {}
    for entry in entries:
        known = found.get(entry.place)
        found[entry.place] = entry if known is None else known.plus(entry)
    return tuple(found[place] for place in sorted(found))


def _earlier(entry: LedgerEntry) -> LedgerEntry:
    is_default = entry.batch_size == entry.default_batch_size
    return entry._replace(month=EARLIER, batch_size=entry.batch_size if is_default else OTHER_SIZES)


def _gone(entry: LedgerEntry) -> LedgerEntry:
    return entry._replace(
        month=EARLIER,
        version_number=UNKNOWN,
        hardware_key="",
        change_points=0,
        batch_size=OTHER_SIZES,
        default_batch_size=UNKNOWN,
    )
