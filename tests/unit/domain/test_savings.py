"""What was saved, held against what is worked out by hand, and against worlds whose truth is known."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bso.domain.baseline import Uncertain
from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import EnergyMethod
from bso.domain.ledger import Ledger, LedgerEntry, Sums
from bso.domain.savings import SavedInMonth, Tariff, TotalSaved, saved_by_month, saved_on, total_saved
from bso.domain.savings_in_words import in_words
from tests.unit.domain.builders import A100, searching

ASSUMED = replace(A100, energy_method=EnergyMethod.ASSUMED, number_of_gpus=4)
DEFAULT = 64


def entry(costs: Sequence[float], *, size: int = DEFAULT, month: str = "2026-01", **more: object) -> LedgerEntry:
    """Trainings that have converged with these energies [J], in a tenth as many seconds."""
    times = [cost / 10.0 for cost in costs]
    values = {
        "month": month,
        "version_number": 1,
        "hardware_key": A100.key,
        "change_points": 0,
        "batch_size": size,
        "default_batch_size": DEFAULT,
        "trials": len(costs),
        "models": len(costs),
        "measured": len(costs),
        "measured_models": len(costs),
        "energy_j": sum(costs),
        "time_s": sum(times),
        "model_energy": Sums(total=sum(costs), squares=sum(cost * cost for cost in costs)),
        "model_time": Sums(total=sum(times), squares=sum(time * time for time in times)),
        **more,
    }
    return LedgerEntry(**values)  # type: ignore[arg-type]  # the values of a dict have one type, the fields have several


def ledger(*entries: LedgerEntry) -> Ledger:
    return Ledger(entries=tuple(sorted(entries)), kinds={kind.key: kind for kind in (A100, ASSUMED)})


def months(*entries: LedgerEntry) -> tuple[SavedInMonth, ...]:
    return saved_by_month(ledger(*entries))


def total(*entries: LedgerEntry) -> TotalSaved:
    return total_saved(("job", one) for one in months(*entries))


def test_it_is_what_the_default_would_have_taken_less_what_all_took() -> None:
    stopped = entry([], size=32, trials=1, measured=1, energy_j=25.0, time_s=2.5)
    [month] = months(entry([100.0, 100.0]), entry([60.0] * 8, size=128), stopped)
    assert month.usual_energy_j is not None
    assert month.usual_energy_j.value == pytest.approx(100.0)
    assert month.saved_energy_j is not None
    assert month.saved_energy_j.value == pytest.approx(10 * 100.0 - (200.0 + 480.0 + 25.0))
    assert month.saved_time_s is not None
    assert month.saved_time_s.value == pytest.approx(month.saved_energy_j.value / 10.0)
    assert (month.trials, month.models) == (11, 10)
    spread = 0.3 / math.sqrt(1 + 1 + 7)  # nothing differs, and a spread of 30 % counts as one more training
    assert month.usual_energy_j.error == pytest.approx(100.0 * spread / math.sqrt(2))
    assert month.saved_energy_j.error == pytest.approx(10 * month.usual_energy_j.error)


def test_nothing_is_known_where_the_default_never_reached_the_target_and_it_is_as_soon_as_it_does() -> None:
    others = entry([60.0] * 3, size=128)
    [month] = months(others)
    assert (month.saved_energy_j, month.saved_time_s, month.usual_time_s) == (None, None, None)
    found = total_saved([("job", month)])
    assert (found.trials, found.trials_unknown, found.energy_j) == (3, 3, None)
    assert in_words(found) == ""
    later = entry([100.0], month="2026-02")
    first, _ = months(others, later)
    assert first.saved_energy_j is not None
    assert first.saved_energy_j.value == pytest.approx(3 * 100.0 - 180.0)


def test_what_others_costs_have_done_since_moves_the_default_too_and_widens_the_interval() -> None:
    before = [entry([100.0] * 5), entry([60.0] * 20, size=128)]
    still = months(*before, entry([60.0] * 20, size=128, month="2026-02"))[1]
    moved = months(*before, entry([90.0] * 20, size=128, month="2026-02"))[1]
    assert still.usual_energy_j is not None
    assert moved.usual_energy_j is not None
    assert still.usual_energy_j.value == pytest.approx(100.0)
    assert moved.usual_energy_j.value == pytest.approx(150.0, rel=0.02)
    assert moved.usual_energy_j.error > 4 * still.usual_energy_j.error
    low = moved.usual_energy_j.value - moved.usual_energy_j.half_interval
    assert low < 105.0, "that the default has not changed at all is within the interval"


def test_after_a_change_point_that_leaves_nothing_to_compare_with_nothing_is_known() -> None:
    before = entry([100.0] * 5)
    after = entry([500.0] * 5, size=128, change_points=1, month="2026-02")
    assert months(before, after)[1].saved_energy_j is None
    bridged = months(before, entry([60.0] * 5, size=128), after)[1]
    assert bridged.saved_energy_j is not None


def test_a_change_within_a_month_is_no_noise() -> None:
    before = [entry([100.0] * 4), entry([60.0] * 10, size=128)]
    after = entry([120.0] * 10, size=128, change_points=1)
    [month] = months(*before, after)
    assert month.saved_energy_j is not None
    expected = 14 * 100.0 + 10 * 200.0 - (400.0 + 600.0 + 1200.0)
    assert month.saved_energy_j.value == pytest.approx(expected, rel=0.02)


def test_losses_are_shown_and_stay_in_the_total() -> None:
    cheap = months(entry([100.0] * 4), entry([60.0] * 4, size=128))
    dear = months(entry([100.0] * 4), entry([400.0] * 2, size=32))
    assert dear[0].saved_energy_j is not None
    assert dear[0].saved_energy_j.value == pytest.approx(-600.0)
    both = total_saved([("a", cheap[0]), ("b", dear[0])])
    assert both.energy_j is not None
    assert both.energy_j.value == pytest.approx(160.0 - 600.0)
    assert both.energy_share == pytest.approx(-440.0 / (800.0 + 600.0))


def test_assumed_energy_is_never_added_to_measured_energy() -> None:
    assumed = [entry([100.0] * 2, hardware_key=ASSUMED.key), entry([50.0] * 2, size=128, hardware_key=ASSUMED.key)]
    found = total_saved(("job", one) for one in months(entry([100.0] * 2), entry([60.0] * 2, size=128), *assumed))
    assert found.energy_j is not None
    assert found.assumed_energy_j is not None
    assert (found.energy_j.value, found.assumed_energy_j.value) == pytest.approx((80.0, 100.0))
    assert found.time_s is not None
    assert found.gpu_time_s is not None
    assert found.time_s.value == pytest.approx(18.0)
    assert found.gpu_time_s.value == pytest.approx(8.0 + 4 * 10.0), "four GPUs"


def test_where_energy_is_missing_only_the_time_of_those_trials_is_known() -> None:
    bare = entry([60.0] * 2, size=128, measured=1, measured_models=1, energy_j=60.0, model_energy=Sums.of(60.0))
    [month] = months(entry([100.0] * 2), bare)
    assert month.saved_energy_j is not None
    assert month.saved_energy_j.value == pytest.approx(40.0), "one of the two"
    assert month.saved_time_s is not None
    assert month.saved_time_s.value == pytest.approx(8.0), "both"
    assert (month.trials, month.unmeasured, month.trials_unknown) == (4, 1, 0)
    none = entry([60.0] * 2, size=128, measured=0, measured_models=0, energy_j=0.0, model_energy=Sums())
    found = total(none, entry([100.0], measured=0, measured_models=0, energy_j=0.0, model_energy=Sums()))
    assert (found.energy_j, found.unmeasured) == (None, 3)
    assert found.time_s is not None


def test_another_default_is_compared_with_from_then_on_and_not_before() -> None:
    small = [entry([100.0] * 4), entry([50.0] * 4, size=128)]
    later = [entry([50.0] * 4, size=128, month="2026-02", default_batch_size=128)]
    first, second = months(*small, *later)
    assert first.saved_energy_j is not None
    assert first.saved_energy_j.value == pytest.approx(4 * 50.0)
    assert second.saved_energy_j is not None
    assert second.saved_energy_j.value == pytest.approx(0.0, abs=1e-9)


def test_what_was_lost_before_a_change_counts_although_nothing_after_it_can_be_compared() -> None:
    lost = entry([400.0] * 2, size=32)
    after = entry([500.0] * 5, size=256, change_points=1)
    [month] = months(entry([100.0] * 4), lost, after)
    assert month.saved_energy_j is not None
    assert month.saved_energy_j.value == pytest.approx(-600.0)
    assert (month.trials_unknown, month.models_unknown) == (5, 5)


def test_where_only_the_default_has_run_nothing_was_saved_and_nothing_else_is_said() -> None:
    found = total(entry([100.0, 100.0]))
    assert found.energy_j is not None
    assert found.energy_j.value == 0.0
    assert in_words(found).startswith("Saved, against the default batch size at full power: 0 ± ")


def test_the_default_is_taken_at_full_power() -> None:
    """Under 200 W a sample costs least, (150 / 2 + 400 / 2) / 8 < (400 / 2 + 400 / 2) / 10."""
    measured = (
        PowerMeasurement(power_limit_w=400.0, average_power_w=400.0, samples_per_s=10.0),
        PowerMeasurement(power_limit_w=200.0, average_power_w=150.0, samples_per_s=8.0),
    )
    tuned = entry([300.0] * 3, model_time=Sums(total=6.0, squares=12.0))  # 150 W
    [month] = saved_by_month(ledger(tuned).with_power(A100, DEFAULT, measured, eta_knob=0.5))
    assert month.usual_energy_j is not None
    assert month.usual_time_s is not None
    assert month.usual_energy_j.value == pytest.approx(300.0 * (400.0 / 10.0) / (150.0 / 8.0))
    assert month.usual_time_s.value == pytest.approx(2.0 * 8.0 / 10.0)
    full = entry([300.0] * 3, model_time=Sums(total=2.25, squares=1.6875))  # 400 W
    [month] = saved_by_month(ledger(full).with_power(A100, DEFAULT, measured, eta_knob=0.5))
    assert month.usual_energy_j is not None
    assert month.usual_energy_j.value == pytest.approx(300.0)


NUMBERS = st.floats(0.0, 1e18)
ENTRIES = st.builds(
    entry,
    st.lists(NUMBERS, max_size=3),
    size=st.sampled_from([0, 32, 64, 128]),
    month=st.sampled_from(["", "2026-01", "2026-02"]),
    change_points=st.integers(0, 2),
    default_batch_size=st.sampled_from([0, 64, 128]),
    measured_models=st.integers(0, 3),
    model_energy=st.builds(Sums, total=NUMBERS, squares=st.floats(0.0, 1e36)),
)
MEASURED = st.builds(PowerMeasurement, power_limit_w=NUMBERS, average_power_w=NUMBERS, samples_per_s=NUMBERS)


@searching(300)
@given(st.lists(ENTRIES, max_size=8), st.lists(MEASURED, max_size=3), st.floats(0.0, 1.0))
def test_whatever_was_reported_the_result_is_finite(
    entries: list[LedgerEntry], measured: list[PowerMeasurement], eta_knob: float
) -> None:
    found = saved_by_month(ledger(*entries).with_power(A100, DEFAULT, measured, eta_knob=eta_knob))
    summed = total_saved(("job", one) for one in found)
    for estimate in (summed.energy_j, summed.time_s, summed.gpu_time_s):
        assert estimate is None or (math.isfinite(estimate.value) and math.isfinite(estimate.error))
    in_words(summed)


def month(saved: float, error: float, *, key: str = "k", number: int = 1) -> SavedInMonth:
    [one] = months(entry([100.0]))
    estimate = Uncertain(value=saved, error=error)
    return replace(one, hardware_key=key, version_number=number, saved_energy_j=estimate, saved_time_s=estimate)


def test_errors_of_the_same_trainings_are_added_others_are_independent() -> None:
    same = total_saved([("a", month(1.0, 3.0)), ("a", month(1.0, 4.0))])
    apart = total_saved([("a", month(1.0, 3.0)), ("b", month(1.0, 4.0))])
    assert same.energy_j == Uncertain(value=2.0, error=7.0)
    assert apart.energy_j == Uncertain(value=2.0, error=5.0)


def test_money_and_co2_are_those_of_measured_energy_and_gpu_hours() -> None:
    found = total_saved([("a", month(3.6e6, 3.6e5))])  # 1 kWh, 1000 h
    assert Tariff().money(found) is None
    assert parts(Tariff(price_per_kwh=0.25).money(found)) == pytest.approx((0.25, 0.025))
    assert parts(Tariff(price_per_kwh=0.25, price_per_gpu_hour=2.0).money(found)) == pytest.approx((2000.25, 200.025))
    assert parts(Tariff(co2_g_per_kwh=100.0).co2_g(found)) == pytest.approx((100.0, 10.0))


def parts(estimate: Uncertain | None) -> tuple[float, float]:
    assert estimate is not None
    return estimate.value, estimate.error


def test_one_hardware_kind_and_version_alone() -> None:
    months = [month(1.0, 0.0), month(2.0, 0.0, key="other"), month(4.0, 0.0, number=2)]
    found = saved_on(months, version_number=1, hardware_key="k")
    assert found.time_s == Uncertain(value=1.0, error=0.0)


def test_a_sentence() -> None:
    found = total_saved(("job", one) for one in months(entry([36e5] * 2), entry([18e5] * 8, size=128)))
    assert in_words(found) == (
        "Saved, against the default batch size at full power: 4.0 ± 1.4 kWh of energy (40%) and 16 d 16 h ± 5 d 21 h "
        "of time (40%), by 10 models in 10 trials."
    )


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_the_truth_lies_within_the_interval(sigma: float, drift: float) -> None:
    """A year of trainings whose default runs in the first month only, while all costs grow by the same factor."""
    inside = 0
    worlds = 200
    for seed in range(worlds):
        rng = random.Random(seed)
        entries, truth = [], 0.0
        for number in range(12):
            level = (1.0 + drift) ** number
            for size, mean, count in ((DEFAULT, 100.0, 2 if number == 0 else 0), (128, 60.0, 10)):
                costs = [mean * level * rng.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(count)]
                if costs:
                    entries.append(entry(costs, size=size, month=f"2026-{number + 1:02d}"))
                truth += count * 100.0 * level - sum(costs)
        found = total_saved(("job", one) for one in months(*entries)).energy_j
        assert found is not None
        inside += abs(found.value - truth) <= found.half_interval
    assert inside >= 0.94 * worlds, f"{inside} of {worlds}"
