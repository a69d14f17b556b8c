from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from bso.domain.power_sweep import Plan, begin_profiling
from bso_client.power.agreement import Window
from bso_client.power.limits import LimitNotSet
from bso_client.power.tuner import Tuner

PLAN = Plan(limits_w=(300.0, 200.0), wait_steps=0, warmup_steps=0, profile_steps=2)


@dataclass
class Limit:
    refused_w: tuple[float, ...] = ()
    set_w: list[float] = field(default_factory=list)

    def set(self, limit_w: float) -> None:
        if limit_w in self.refused_w:
            raise LimitNotSet("out of range")
        self.set_w.append(limit_w)


@dataclass
class Measured:
    time: float = 4.0
    total_energy: float = 800.0


@dataclass
class Meter:
    """A monitor of somebody's own, which cannot cancel."""

    is_open: bool = False
    begins: Callable[[], None] = lambda: None

    def begin_window(self, key: str, /) -> None:
        self.begins()
        assert not self.is_open
        self.is_open = True

    def end_window(self, key: str, /) -> Measured:
        assert self.is_open
        self.is_open = False
        return Measured()


def tuner(limit: Limit, meter: Meter) -> Tuner:
    return Tuner(begin_profiling(PLAN), limit=limit, monitor=meter, samples_per_step=32)


def train(tuned: Tuner, steps: int) -> None:
    for _ in range(steps):
        tuned.begin_step()


def test_every_limit_is_set_and_measured() -> None:
    limit = Limit()
    tuned = tuner(limit, Meter())
    train(tuned, 5)
    assert tuned.state.is_done
    assert limit.set_w == [300.0, 200.0]
    assert tuned.windows == [
        Window(limit_w=limit_w, time_s=4.0, energy_j=800.0, samples=64) for limit_w in (300.0, 200.0)
    ]


def test_a_limit_that_is_refused_gives_no_measurement_and_costs_the_same_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tuned = tuner(Limit(refused_w=(300.0,)), Meter())
    train(tuned, 5)
    assert [window.is_valid for window in tuned.windows] == [False, True]
    assert "the power limit of 300 W could not be set: out of range" in caplog.text


def test_a_meter_that_does_not_begin_gives_no_measurement(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([OSError("no meter")])

    def begins() -> None:
        for failure in failures:
            raise failure

    tuned = tuner(Limit(), Meter(begins=begins))
    train(tuned, 5)
    assert [window.is_known for window in tuned.windows] == [False, True]
    assert "OSError('no meter')" in caplog.text


def test_the_window_of_a_monitor_that_cannot_cancel_is_ended_all_the_same() -> None:
    meter = Meter()
    tuned = tuner(Limit(), meter)
    train(tuned, 1)
    tuned.end_epoch(is_step_complete=True)
    assert (meter.is_open, tuned.windows) == (False, [])
    train(tuned, 3)
    assert len(tuned.windows) == 1


def test_what_other_ranks_have_not_measured_is_measured_again() -> None:
    tuned = tuner(Limit(), Meter())
    train(tuned, 5)
    tuned.resume(begin_profiling(PLAN))
    assert tuned.windows == []
