"""Power profiles as tables: what each power limit does to the speed and the cost of a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from bso.domain.commands import PowerMeasurement
from bso.domain.job_spec import JobSpec
from bso.domain.power_sweep import cost_of_sample
from bso.domain.quantities import figure, joules, watts
from bso.service.records import PowerProfile
from bso_cli.tables import Table

_NUMBERS = ("batch size", "power limit", "average power", "samples/s", "energy / sample", "cost / sample")


def profile_tables(profiles: Sequence[PowerProfile], spec: JobSpec) -> Iterator[Table]:
    """One table per hardware kind, a line per batch size and power limit; the cheapest limit of each is set off."""
    for hardware, of_kind in groupby(sorted(profiles, key=_place), key=lambda profile: profile.hardware):
        made = Table(f"Power limits profiled on {hardware.describe()}", *_NUMBERS, "", right=_NUMBERS)
        for profile in of_kind:
            _add_rows(made, profile, spec)
        yield made


def _add_rows(made: Table, profile: PowerProfile, spec: JobSpec) -> None:
    eta_knob, max_power_w = spec.eta_knob, profile.hardware.max_power_w
    prices = {one: cost_of_sample(one, eta_knob=eta_knob, max_power_w=max_power_w) for one in profile.measurements}
    cheapest = min(prices, key=lambda one: prices[one], default=None)
    for measured in highest_first(profile):
        made.add_row(
            str(profile.batch_size),
            watts(measured.power_limit_w),
            watts(measured.average_power_w),
            figure(measured.samples_per_s),
            joules(measured.average_power_w / measured.samples_per_s),
            joules(prices[measured]),
            "cheapest" if measured == cheapest else "",
            style="bold green" if measured == cheapest else None,
        )


def highest_first(profile: PowerProfile) -> list[PowerMeasurement]:
    """The measurements of a profile, from the highest power limit to the lowest."""
    return sorted(profile.measurements, key=lambda one: -one.power_limit_w)


def _place(profile: PowerProfile) -> tuple[str, str, int]:
    return profile.hardware.describe(), profile.hardware.key, profile.batch_size
