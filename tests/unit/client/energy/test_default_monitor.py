"""How the energy of a training is obtained where nobody says so: measured, or assumed with one warning."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from bso.domain.trial import Trial
from bso_client import BatchSizeOptimizer, EnergyMethod, EnergyMonitor, InvalidSetting, once
from bso_client.energy.energy_monitor import default_monitor
from bso_client.energy.meters import EnergySetting, read_metering_settings
from bso_client.energy.monitor import ConstantPowerMonitor
from tests.fakes.gpus import FakeGpus
from tests.fakes.powercap import FakePowercap
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, job_spec


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus, powercap: FakePowercap) -> None:
    """Nothing is readable on it unless a test says so."""
    monkeypatch.setenv("BSO_ENERGY", "auto")
    monkeypatch.setenv("BSO_POWERCAP_DIR", str(powercap.root))
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(once, "said", set())


def trial_of(optimizer: ReachableOptimizer, *meanwhile: Callable[[], None], **options: Any) -> Trial:
    """The trial that one training leaves, while which this happens."""
    with BatchSizeOptimizer(job_spec(), transport=optimizer, **options) as bso:
        for trial in bso.trials():
            with trial:
                for happen in meanwhile:
                    happen()
                trial.on_evaluate(0.95, epoch=2.0)
    return optimizer.trials()[0]


@pytest.mark.parametrize("index", [0, 1])
def test_gpus_are_measured_without_being_asked_for(
    optimizer: ReachableOptimizer, gpus: FakeGpus, caplog: pytest.LogCaptureFixture, index: int
) -> None:
    gpus.add(max_limit_w=700.0)
    gpus.add(max_limit_w=700.0)

    trial = trial_of(optimizer, lambda: gpus.consume(index, 30.0))

    assert 0 < trial.energy_j <= 30.0  # a little of it counts as before and after: counters are read in turn
    assert trial.hardware.energy_method is EnergyMethod.NVML_COUNTER
    assert (trial.hardware.number_of_gpus, trial.hardware.max_power_w) == (2, 1400.0)
    assert caplog.records == []


def test_processors_are_measured_where_there_is_no_gpu(optimizer: ReachableOptimizer, powercap: FakePowercap) -> None:
    powercap.add_package()

    trial = trial_of(optimizer, lambda: powercap.consume(4.0))

    assert trial.energy_j == 4.0
    assert trial.hardware.energy_method is EnergyMethod.RAPL


def test_without_a_meter_the_cost_is_proportional_to_time(
    optimizer: ReachableOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bso")

    trial = trial_of(optimizer, constant_power=40.0, hardware=HARDWARE)

    assert trial.hardware.energy_method is EnergyMethod.ASSUMED
    assert trial.energy_j == pytest.approx(40.0 * trial.time_s, rel=1e-9)
    [warning] = [record for record in caplog.records if getattr(record, "action", "") == "energy_assumed"]
    for words in ("40 W", "bso doctor"):
        assert words in warning.getMessage()
    assert len(warning.getMessage()) <= 80
    [why] = [record for record in caplog.records if getattr(record, "action", "") == "no_meter"]
    for words in ("GPU: none is there", "CPU: no energy counters"):
        assert words in why.getMessage()


def test_the_warning_comes_once(powercap: FakePowercap, caplog: pytest.LogCaptureFixture) -> None:
    settings = read_metering_settings({"BSO_POWERCAP_DIR": str(powercap.root)})

    monitors = [default_monitor(settings, constant_power_w=None) for _ in range(3)]

    assert monitors == [None, None, None]
    assert len(caplog.records) == 1


def test_no_warning_comes_where_bso_recur_says_that_an_earlier_launch_has_given_it(
    powercap: FakePowercap, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"BSO_POWERCAP_DIR": str(powercap.root), "BSO_NOTICE_GIVEN": "energy_assumed"}

    assert default_monitor(read_metering_settings(environ), constant_power_w=77.0) is None
    assert caplog.records == []


def test_a_slice_of_a_gpu_is_not_measured_by_the_processors_meter(
    optimizer: ReachableOptimizer, gpus: FakeGpus, powercap: FakePowercap, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bso")
    gpus.add(mig_mode=1)
    powercap.add_package()

    trial = trial_of(optimizer)

    assert trial.hardware.energy_method is EnergyMethod.ASSUMED
    assert "what one slice consumes cannot be distinguished from its neighbours" in caplog.text


def test_a_meter_that_fails_leaves_the_energy_of_its_trial_unknown_not_assumed(
    optimizer: ReachableOptimizer, gpus: FakeGpus, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()

    trial = trial_of(optimizer, lambda: gpus.fail("nvmlDeviceGetTotalEnergyConsumption", 15, index=0))

    assert not trial.is_energy_complete
    assert trial.hardware.energy_method is EnergyMethod.NVML_COUNTER
    assert [getattr(record, "action", "") for record in caplog.records] == ["meter_failed", "unmeasured"]


def test_energy_can_be_assumed_on_purpose(
    optimizer: ReachableOptimizer, gpus: FakeGpus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    monkeypatch.setenv("BSO_ENERGY", "assumed")

    trial = trial_of(optimizer)

    assert trial.hardware.energy_method is EnergyMethod.ASSUMED
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_monitor_of_ones_own_comes_first(optimizer: ReachableOptimizer, gpus: FakeGpus) -> None:
    gpus.add()
    gpus.add()
    with EnergyMonitor([1], environ={}) as monitor:
        trial = trial_of(optimizer, lambda: gpus.consume(0, 5.0), lambda: gpus.consume(1, 7.0), monitor=monitor)

    assert (trial.energy_j, trial.hardware.number_of_gpus) == (7.0, 1)


def test_a_monitor_that_was_given_stays_open_for_its_owner(optimizer: ReachableOptimizer, gpus: FakeGpus) -> None:
    gpus.add()
    with EnergyMonitor(environ={}) as monitor:
        trial_of(optimizer, monitor=monitor)
        monitor.begin_window("afterwards")
        gpus.consume(0, 3.0)
        measured = monitor.end_window("afterwards")

    assert measured.total_energy == 3.0


@pytest.mark.parametrize(("word", "setting"), [("", EnergySetting.AUTO), ("assumed", EnergySetting.ASSUMED)])
def test_the_setting_is_read_from_the_environment(word: str, setting: EnergySetting) -> None:
    assert read_metering_settings({"BSO_ENERGY": word}).energy is setting


def test_another_word_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"BSO_ENERGY must be one of auto, assumed, got 'measured'"):
        read_metering_settings({"BSO_ENERGY": "measured"})


def test_energy_is_assumed_as_constant_power_times_time() -> None:
    now = 5.0
    monitor = ConstantPowerMonitor(30.0, clock=lambda: now)
    monitor.begin_window("a")
    now = 7.0

    assert monitor.end_window("a").total_energy == 60.0
