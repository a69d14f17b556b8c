import csv
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest

from bso.domain.commands import PowerMeasurement
from bso_client.errors import InvalidSetting
from bso_client.power.selection import Cost, Energy, MaxSlowdown, Selection, Time


def measured(limit_w: float, power_w: float, samples_per_s: float) -> PowerMeasurement:
    return PowerMeasurement(power_limit_w=limit_w, average_power_w=power_w, samples_per_s=samples_per_s)


PROFILE = (
    measured(300, 250, 100),
    measured(250, 225, 99),
    measured(200, 190, 95),
    measured(150, 148, 70),
    measured(100, 99, 30),
)


def chosen(selection: Selection, profile: Sequence[PowerMeasurement] = PROFILE, *, eta_knob: float = 0.5) -> float:
    return selection.select(profile, eta_knob=eta_knob, max_power_w=300).power_limit_w


@pytest.mark.parametrize(
    ("eta_knob", "limit_w"),
    [(0.0, 300), (0.5, 200), (1.0, 200)],  # 300 W / throughput; the mean of both; average power / throughput
)
def test_the_cost_of_a_sample_decides(eta_knob: float, limit_w: float) -> None:
    assert chosen(Cost(), eta_knob=eta_knob) == limit_w
    assert chosen(Cost(eta_knob), eta_knob=0.25) == limit_w


def test_the_cost_is_given_in_joules_per_sample() -> None:
    choice = Cost().select(PROFILE, eta_knob=0.5, max_power_w=300)
    assert choice.reason == "200 W: a sample costs least at it (2.579 J, eta_knob 0.5)"  # (190 + 300) / 2 / 95


def test_energy_takes_the_limit_of_least_joules_per_sample() -> None:
    assert chosen(Energy()) == 200
    assert "(2 J)" in Energy().select(PROFILE, eta_knob=0.5, max_power_w=300).reason


def test_time_takes_the_fastest_and_the_lower_limit_of_equally_fast_ones() -> None:
    assert chosen(Time()) == 300
    assert chosen(Time(), (*PROFILE, measured(275, 240, 100))) == 275


@pytest.mark.parametrize(("factor", "limit_w"), [(1.0, 300), (1.02, 250), (1.1, 200), (1.5, 150), (5.0, 100)])
def test_a_slowdown_up_to_the_factor_is_allowed(factor: float, limit_w: float) -> None:
    assert chosen(MaxSlowdown(factor)) == limit_w


def test_a_slowdown_counts_from_the_highest_limit_not_from_the_fastest() -> None:
    assert chosen(MaxSlowdown(1.0), (measured(300, 250, 100), measured(250, 225, 101))) == 250


@pytest.mark.parametrize("selection", [Cost(), Energy(), Time(), MaxSlowdown(1.2)])
def test_every_choice_is_one_that_was_measured_and_has_a_reason(selection: Selection) -> None:
    for profile in (PROFILE, PROFILE[::-1], PROFILE[:1]):
        choice = selection.select(profile, eta_knob=0.5, max_power_w=300)
        assert choice.power_limit_w in {each.power_limit_w for each in profile}
        assert choice.reason.startswith(f"{choice.power_limit_w:g} W: ")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_a_knob_outside_its_range_is_refused(value: float) -> None:
    with pytest.raises(InvalidSetting, match="eta_knob must be from 0"):
        Cost(value)


@pytest.mark.parametrize("value", [0.9, float("nan")])
def test_a_slowdown_that_is_a_speedup_is_refused(value: float) -> None:
    with pytest.raises(InvalidSetting, match="1 or more"):
        MaxSlowdown(value)


FOLDER = os.environ.get("BSO_TRACES")


@pytest.mark.skipif(not FOLDER, reason="BSO_TRACES names no folder with the traces of the Zeus paper")
@pytest.mark.parametrize("eta_knob", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("gpu", ["a40", "v100"])
def test_measured_trainings_get_the_limit_at_which_an_epoch_costs_least(gpu: str, eta_knob: float) -> None:
    columns = ("dataset", "network", "batch_size", "optimizer")
    with (Path(str(FOLDER)) / f"summary_power_{gpu}.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: [row[column] for column in columns])
    max_power_w = max(float(row["power_limit"]) for row in rows)
    trainings = [list(group) for _, group in groupby(rows, lambda row: [row[column] for column in columns])]
    assert len(trainings) > 10
    for training in trainings:
        epoch_cost = {
            float(row["power_limit"]): (eta_knob * float(row["average_power"]) + (1 - eta_knob) * max_power_w)
            * float(row["time_per_epoch"])
            for row in training
        }
        profile = [
            measured(float(row["power_limit"]), float(row["average_power"]), 50_000 / float(row["time_per_epoch"]))
            for row in training
        ]
        choice = Cost().select(profile, eta_knob=eta_knob, max_power_w=max_power_w)
        assert epoch_cost[choice.power_limit_w] == pytest.approx(min(epoch_cost.values()))
