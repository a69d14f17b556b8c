"""Probing epoch costs: which steps are made within which time, and what is made of them."""

from collections.abc import Callable
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from bso.domain.commands import EpochCostProbe
from bso_client.distributed.shares import Share
from bso_client.prober import FEWEST, MOST, WARM_UP, Prober
from bso_client.training.state import Consumption, Probed

EPOCH = Consumption(time_s=100.0, energy_j=1000.0)
STEP_S = {32: 0.8, 64: 1.0, 128: 1.5, 256: 2.5}
POWER_W = {32: 10.0, 64: 10.0, 128: 12.0, 256: 14.0}


class Machine:
    """A clock that steps move on, and a monitor of the power that they take."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.energy_j = 0.0
        self.steps: list[int] = []
        self._windows: dict[str, tuple[float, float]] = {}

    def clock(self) -> float:
        return self.now_s

    def step(self, batch_size: int) -> None:
        self.steps.append(batch_size)
        self.now_s += STEP_S[batch_size]
        self.energy_j += STEP_S[batch_size] * POWER_W[batch_size]

    def begin_window(self, key: str) -> None:
        self._windows[key] = self.now_s, self.energy_j

    def end_window(self, key: str) -> Any:
        began_s, before_j = self._windows.pop(key)
        return SimpleNamespace(time=self.now_s - began_s, total_energy=self.energy_j - before_j)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def prober(machine: Machine) -> Prober:
    return Prober(machine, clock=machine.clock)


def others(found: Probed) -> list[EpochCostProbe]:
    """The probes of other batch sizes than the training's."""
    return [each for each in found.probes if each.batch_size != 64]


def probe(
    prober: Prober,
    step: Callable[[int], object],
    *wanted: int,
    allowance_s: float = 1000.0,
    epoch: Consumption = EPOCH,
) -> Probed:
    return prober.probe(step, wanted, own=64, epoch=epoch, allowance_s=allowance_s)


def test_an_epoch_is_that_of_the_training_times_the_ratio_of_samples(prober: Prober, machine: Machine) -> None:
    found = probe(prober, machine.step, 128, 32)
    times = {each.batch_size: each.time_s for each in found.probes}
    energies = {each.batch_size: each.energy_j for each in found.probes}
    assert times == pytest.approx({64: 100.0, 128: 75.0, 32: 160.0})
    assert energies == pytest.approx({64: 1000.0, 128: 900.0, 32: 1600.0})
    assert found.batch_sizes == {32, 64, 128}


def test_all_that_probing_took_is_counted(prober: Prober, machine: Machine) -> None:
    found = probe(prober, machine.step, 128)
    assert (found.time_s, found.energy_j) == pytest.approx((machine.now_s, machine.energy_j))
    assert machine.steps.count(128) == WARM_UP + MOST


def test_without_an_allowance_no_step_is_made(prober: Prober, machine: Machine) -> None:
    assert probe(prober, machine.step, 128, allowance_s=0.0) == Probed()
    assert machine.steps == []


def test_what_takes_longer_than_is_allowed_waits(prober: Prober, machine: Machine) -> None:
    least_s = 2.0 + (WARM_UP + FEWEST) * 1.0
    first = probe(prober, machine.step, 128, allowance_s=least_s)
    assert (others(first), machine.steps) == ([], [64] * (2 + WARM_UP + FEWEST))
    assert probe(prober, machine.step, 128, allowance_s=2.0 * (WARM_UP + FEWEST) - 0.1) == Probed()
    second = probe(prober, machine.step, 128, allowance_s=2.0 * (WARM_UP + FEWEST))
    assert [each.batch_size for each in others(second)] == [128]


def test_a_size_for_which_there_is_no_time_does_not_hold_up_a_smaller_one(prober: Prober, machine: Machine) -> None:
    probe(prober, machine.step, 256, allowance_s=2.0 + 5.0 * 1.0)
    found = probe(prober, machine.step, 256, 32, allowance_s=6.0)
    assert [each.batch_size for each in others(found)] == [32]


@pytest.mark.parametrize("allowance_s", [7.0, 13.0, 40.0, 80.0, 150.0])
def test_no_more_time_passes_than_is_allowed(prober: Prober, machine: Machine, allowance_s: float) -> None:
    found = probe(prober, machine.step, 128, 32, 256, allowance_s=allowance_s)
    assert 0.0 < found.time_s <= allowance_s


def test_a_step_that_takes_longer_than_in_proportion_is_made_once(
    prober: Prober, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(prober, machine.step)
    monkeypatch.setitem(STEP_S, 256, 64.0)  # by the samples it would be 4 s
    machine.steps.clear()
    found = probe(prober, machine.step, 256, 32, allowance_s=70.0)
    assert machine.steps.count(256) == 1
    assert found.batch_sizes == {32, 64}


def test_what_takes_as_long_to_enter_as_is_allowed_makes_no_step(prober: Prober, machine: Machine) -> None:
    class Slow:
        def __enter__(self) -> Self:
            machine.now_s += 5.0
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None:
            pass

        def __call__(self, batch_size: int) -> None:
            machine.step(batch_size)

    found = probe(prober, Slow(), 128, allowance_s=4.0)
    assert (machine.steps, found.time_s) == ([], 5.0)


def test_each_size_is_probed_once(prober: Prober, machine: Machine) -> None:
    probe(prober, machine.step, 128)
    assert probe(prober, machine.step, 128) == Probed()


def test_steps_that_vary_say_so(prober: Prober, machine: Machine) -> None:
    def step(batch_size: int) -> None:
        machine.step(batch_size)
        machine.now_s += 0.5 * (len(machine.steps) % 2)

    [steady] = others(probe(Prober(machine, clock=machine.clock), machine.step, 128))
    [varying] = others(probe(prober, step, 128))
    assert varying.variance > 2.0 * steady.variance > 0.0


def test_a_step_that_something_else_has_held_up_does_not_count(prober: Prober, machine: Machine) -> None:
    def step(batch_size: int) -> None:
        machine.step(batch_size)
        machine.now_s += 50.0 * (machine.steps.count(batch_size) == WARM_UP + 5)

    times = {each.batch_size: each.time_s for each in probe(prober, step, 128).probes}
    assert times[128] == pytest.approx(75.0)


def test_steps_that_differ_too_much_are_made_once_more(prober: Prober, machine: Machine) -> None:
    def step(batch_size: int) -> None:
        machine.step(batch_size)
        is_first = batch_size == 128 and machine.steps.count(128) <= WARM_UP + MOST
        machine.now_s += 100.0 * is_first * (len(machine.steps) % 2)

    assert others(probe(prober, step, 128, allowance_s=1e5)) == []
    assert [each.batch_size for each in others(probe(prober, step, 128, allowance_s=1e5))] == [128]


def test_every_report_names_the_own_size_as_the_level_of_the_others(prober: Prober, machine: Machine) -> None:
    first, second = (probe(prober, machine.step, size) for size in (128, 32))
    assert [{each.batch_size for each in found.probes} for found in (first, second)] == [{64, 128}, {64, 32}]


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def test_out_of_memory_excludes_a_size_and_larger_ones(prober: Prober, machine: Machine) -> None:
    def step(batch_size: int) -> None:
        if batch_size >= 128:
            raise OutOfMemoryError("CUDA out of memory")
        machine.step(batch_size)

    found = probe(prober, step, 128, 32, 256)
    assert found.out_of_memory == (128, 256)
    assert [each.batch_size for each in others(found)] == [32]


@pytest.mark.parametrize("raised_at", [32, 64])
def test_whatever_else_a_step_raises_ends_the_probing_alone(
    prober: Prober, machine: Machine, raised_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    def step(batch_size: int) -> None:
        machine.step(batch_size)
        if batch_size == raised_at:
            raise ValueError("no such layer")

    found = probe(prober, step, 128, 32)
    assert (found.is_broken, found.time_s > 0.0) == (True, True)
    assert "ValueError: no such layer" in caplog.text
    steps = len(machine.steps)
    assert probe(prober, step, 128, 256) == Probed(is_broken=True)
    assert len(machine.steps) == steps


def test_a_step_with_its_own_size_that_does_not_fit_is_no_reason_to_exclude_it(
    prober: Prober, caplog: pytest.LogCaptureFixture
) -> None:
    def step(_batch_size: int) -> None:
        raise OutOfMemoryError("CUDA out of memory")

    assert probe(prober, step, 128).out_of_memory == ()
    assert "not probed any more" in caplog.text


def test_a_meter_that_shows_nothing_leaves_the_power_as_it_is(machine: Machine) -> None:
    def no_energy(_key: str) -> Any:
        return SimpleNamespace(time=1.0, total_energy=0.0)

    monitor: Any = SimpleNamespace(begin_window=lambda _key: None, end_window=no_energy)
    [found] = others(probe(Prober(monitor, clock=machine.clock), machine.step, 128))
    assert (found.time_s, found.energy_j) == pytest.approx((75.0, 750.0))


def test_a_meter_that_fails_leaves_the_energy_open(machine: Machine) -> None:
    def broken(_key: str) -> Any:
        raise OSError("no device")

    monitor: Any = SimpleNamespace(begin_window=broken, end_window=broken)
    found = probe(Prober(monitor, clock=machine.clock), machine.step, 128)
    assert found.energy_j is None
    assert [each.energy_j for each in others(found)] == pytest.approx([750.0])


def test_without_an_energy_of_the_training_there_is_none_of_probes(prober: Prober, machine: Machine) -> None:
    found = probe(prober, machine.step, 128, epoch=Consumption(time_s=100.0, energy_j=None))
    assert [each.energy_j for each in others(found)] == [None]


class EnteredStep:
    """A step that has to be entered."""

    def __init__(self, machine: Machine, *, is_hostile: bool = False) -> None:
        self.events: list[str] = []
        self._machine = machine
        self._is_hostile = is_hostile

    def __call__(self, batch_size: int) -> None:
        self.events.append("step")
        self._machine.step(batch_size)

    def __enter__(self) -> Self:
        if self._is_hostile:
            raise TypeError("cannot be copied")
        self.events.append("enter")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.events.append("exit")


def test_a_step_is_entered_once_and_left(prober: Prober, machine: Machine) -> None:
    step = EnteredStep(machine)
    probe(prober, step, 128, 32)
    assert (step.events[0], step.events[-1]) == ("enter", "exit")
    assert set(step.events[1:-1]) == {"step"}


def test_a_step_that_cannot_be_entered_is_not_made(prober: Prober, machine: Machine) -> None:
    step = EnteredStep(machine, is_hostile=True)
    assert probe(prober, step, 128).probes == ()
    assert machine.steps == []


def test_a_rank_makes_steps_with_its_part_of_a_batch(machine: Machine) -> None:
    steps: list[int] = []

    def step(samples: int) -> None:
        steps.append(samples)
        machine.step(2 * samples)

    found = probe(Prober(machine, share_of=Share(position=1, size=2).of, clock=machine.clock), step, 128, 32)
    assert set(steps) == {each.batch_size // 2 for each in found.probes}
