import logging
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from bso.domain.commands import PowerMeasurement, ReportEpoch, ReportPowerProfile
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.simulator.power_limits import LimitChooser, LimitSweep
from bso_client import AsyncBatchSizeOptimizer, BatchSizeOptimizer, JobSpec
from bso_client.errors import InvalidSetting, WrongOrder
from bso_client.power.optimizer import PowerLimitOptimizer
from bso_client.power.selection import Energy, MaxSlowdown, Time
from tests.fakes.gpus import FakeGpus
from tests.fakes.simulated_training import SimulatedTraining, power_w, step_cost_j, step_time_s
from tests.integration.client.power.conftest import MakePowerLimit
from tests.servers.waiting import eventually
from tests.unit.client.doubles import ReachableOptimizer

SPEC = JobSpec(job_id="job", batch_sizes=[64], default_batch_size=64, target_metric=0.9)
HARDWARE = HardwareKind(gpu_model="H100", max_power_w=700.0, energy_method=EnergyMethod.NVML_COUNTER)
LIMITS_W = (700.0, 600.0, 500.0, 400.0, 300.0, 200.0)
CHEAPEST_W = min(LIMITS_W, key=lambda limit_w: step_cost_j(limit_w, eta_knob=0.5, max_power_w=700))
CHOOSER = LimitChooser(eta_knob=0.5, max_power_w=700.0)
MEASURED = [
    PowerMeasurement(power_limit_w=w, average_power_w=power_w(w), samples_per_s=1.0 / step_time_s(w)) for w in LIMITS_W
]


def train(power_limit: PowerLimitOptimizer, training: SimulatedTraining, steps: int) -> None:
    """One epoch."""
    for _ in power_limit.steps(range(steps)):
        training.step()


def test_limits_are_profiled_from_the_highest_to_the_lowest_and_the_cheapest_is_kept(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training)
    train(power_limit, training, 30)

    profiled = [limit_w for limit_w in LIMITS_W for _ in range(3)]
    assert training.limits_w == [700.0, *profiled, *[CHEAPEST_W] * 11]  # the first step waits
    assert CHEAPEST_W not in (700.0, 200.0)
    assert power_limit.power_limit_w == CHEAPEST_W
    power_limit.close()
    assert gpus.device(0)["limit_w"] == 700.0


@pytest.mark.parametrize(
    ("selection", "limit_w"), [(Time(), 700.0), (Energy(), 300.0), (MaxSlowdown(1.1), 400.0), (MaxSlowdown(9), 200.0)]
)
def test_the_selection_decides(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, selection: object, limit_w: float
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training, selection=selection)
    train(power_limit, training, 30)
    assert gpus.device(0)["limit_w"] == limit_w


def test_all_gpus_of_the_process_get_one_limit_and_their_own_back(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add(limit_w=700.0)
    gpus.add(limit_w=700.0, min_limit_w=300.0)
    gpus.add(limit_w=650.0)  # somebody has set less than the default: never more than that
    training = SimulatedTraining(gpus, 0, 1, 2)
    power_limit = make_power_limit(monitor=training)
    train(power_limit, training, 30)

    assert sorted({limit_w for index, limit_w in gpus.limits_set if index == 1}) == [300, 350, 450, 550, 650, 700]
    assert len({gpus.device(index)["limit_w"] for index in range(3)}) == 1
    power_limit.close()
    assert [gpus.device(index)["limit_w"] for index in range(3)] == [700.0, 700.0, 650.0]


def test_the_end_of_an_epoch_discards_a_partial_window_and_the_next_goes_on_with_its_limit(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training)
    train(power_limit, training, 6)  # waits, 700 W measured, 600 W half measured
    assert (training.open, training.cancelled) == ({}, 1)
    assert gpus.device(0)["limit_w"] == 700.0  # evaluation is not slowed down

    train(power_limit, training, 20)
    assert training.limits_w[6:9] == [600.0] * 3
    assert power_limit.power_limit_w == CHEAPEST_W


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_epochs_shorter_than_a_profile_of_one_limit_find_the_best_one_all_the_same(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, steps: int
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training, warmup_steps=3, profile_steps=10)
    for _ in range(14):
        train(power_limit, training, steps)
    assert power_limit.power_limit_w == CHEAPEST_W


def test_a_loop_that_is_left_in_the_middle_discards_its_window(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training)
    for step in power_limit.steps(range(100)):
        training.step()
        if step == 5:
            break
    assert training.cancelled == 1
    train(power_limit, training, 20)
    assert power_limit.power_limit_w == CHEAPEST_W


def test_the_hooks_of_zeus_alone_are_enough(gpus: FakeGpus, make_power_limit: MakePowerLimit) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training)
    for _ in range(3):
        for _ in range(9):
            power_limit.on_step_begin()
            training.step()
        power_limit.on_epoch_end()
    assert power_limit.power_limit_w == CHEAPEST_W


def test_the_energy_counters_of_the_gpus_measure_where_no_monitor_is_given(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    index = gpus.add(min_limit_w=600.0)
    power_limit = make_power_limit(selection=Energy(), warmup_steps=0)
    for _ in power_limit.steps(range(7)):
        gpus.consume(index, gpus.device(index)["limit_w"] ** 6)  # so much more that real time does not matter
    assert power_limit.power_limit_w == 600.0


def test_steps_too_short_for_a_meter_are_warned_of(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    long, short = SimulatedTraining(gpus), SimulatedTraining(gpus)
    for training, profile_steps in ((long, 6), (short, 2)):
        assert caplog.text == ""
        power_limit = make_power_limit(monitor=training, profile_steps=profile_steps)
        train(power_limit, training, 60)
        power_limit.close()
    assert "power limits were measured for 0.2 s each, 2 steps" in caplog.text


def test_without_a_gpu_it_does_nothing_and_says_so_once(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bso")
    for _ in range(2):
        assert list(make_power_limit().steps("abc")) == ["a", "b", "c"]
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said == [("WARNING", "power limits are left alone: there is no GPU that this process sees")]


def test_without_permission_it_explains_once_and_the_training_goes_on(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add(power_w=100.0)
    gpus.forbid_limits()
    first, second = make_power_limit(), make_power_limit()
    for power_limit in (first, second):
        assert list(power_limit.steps("abc")) == ["a", "b", "c"]
    assert first.power_limit_w is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "needs root or the right CAP_SYS_ADMIN" in caplog.text
    assert gpus.limits_set == []


@pytest.mark.parametrize("code", [2, 3, 15, 999], ids=["invalid", "not supported", "lost", "unknown"])
def test_a_limit_that_cannot_be_set_is_left_out(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training, selection=Time())
    setting = "nvmlDeviceSetPowerManagementLimit"
    gpus.fail(setting, [0, 0, code, 0, 0, 0, 0, 0, 0])  # as found, the highest, then 700 W for its profile
    train(power_limit, training, 30)
    assert power_limit.power_limit_w == 600.0
    assert "the power limit of 700 W could not be set" in caplog.text


def test_a_gpu_that_takes_no_limit_any_more_does_not_end_the_training(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training)
    train(power_limit, training, 3)
    gpus.fail("nvmlDeviceSetPowerManagementLimit", 15)
    train(power_limit, training, 50)
    assert len(training.limits_w) == 53


def test_a_meter_that_fails_costs_its_limit_only(gpus: FakeGpus, make_power_limit: MakePowerLimit) -> None:
    class Failing(SimulatedTraining):
        def end_window(self, key: str, /, cancel: bool = False) -> object:
            measured = super().end_window(key, cancel)
            if self.limits_w[-1] == CHEAPEST_W:
                raise RuntimeError("no reading")
            return measured

    gpus.add()
    training = Failing(gpus)
    power_limit = make_power_limit(monitor=training)
    train(power_limit, training, 30)
    assert power_limit.power_limit_w in (CHEAPEST_W - 100, CHEAPEST_W + 100)


def test_a_meter_that_measures_nothing_leaves_the_limit_as_it_was(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add(limit_w=650.0)  # draws nothing
    power_limit = make_power_limit()
    list(power_limit.steps(range(40)))
    assert gpus.device(0)["limit_w"] == 650.0
    assert "raise profile_steps" in caplog.text


def test_a_selection_that_raises_leaves_the_limit_as_it_was(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def select(self, *_: object, **__: object) -> object:
            raise ZeroDivisionError

    gpus.add(limit_w=650.0)
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training, selection=Broken())
    train(power_limit, training, 30)
    assert gpus.device(0)["limit_w"] == 650.0
    assert "the power limit is left as it was found" in caplog.text


def test_a_second_one_for_the_same_gpu_leaves_it_alone(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    gpus.add()
    first, second = SimulatedTraining(gpus, 0), SimulatedTraining(gpus, 0)
    power_limit = make_power_limit(monitor=first)
    train(power_limit, first, 30)
    train(make_power_limit(monitor=second), second, 30)
    assert second.limits_w == [CHEAPEST_W] * 30
    assert "sets the power limit of the same GPU already: close the earlier PowerLimitOptimizer" in caplog.text

    elsewhere = SimulatedTraining(gpus, 1)
    train(make_power_limit(monitor=elsewhere), elsewhere, 30)
    assert elsewhere.limits_w[-1] == CHEAPEST_W

    power_limit.close()
    again = SimulatedTraining(gpus, 0)
    train(make_power_limit(monitor=again), again, 30)
    assert again.limits_w[-1] == CHEAPEST_W


@pytest.mark.parametrize("name", ["profile_path", "profile_key"])
def test_a_lone_training_starts_at_the_best_limit_of_its_file(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, tmp_path: Path, name: str
) -> None:
    gpus.add()
    options = {name: str(tmp_path / "profiles.json") if name == "profile_path" else "resnet50"}
    first, second, third = (SimulatedTraining(gpus) for _ in range(3))
    power_limit = make_power_limit(monitor=first, samples_per_step=64, **options)
    train(power_limit, first, 30)
    power_limit.close()

    power_limit = make_power_limit(monitor=second, samples_per_step=64, **options)
    train(power_limit, second, 5)
    assert second.limits_w == [CHEAPEST_W] * 5
    power_limit.close()

    power_limit = make_power_limit(monitor=third, samples_per_step=128, **options)
    train(power_limit, third, 5)
    assert third.limits_w[0] == 700.0  # another batch size is another profile
    assert (tmp_path / "state" / "power-profiles.json").exists() == (name == "profile_key")


def test_a_kept_profile_of_unknown_steps_is_a_warning_unless_somebody_counts_them(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    path = tmp_path / "profiles.json"
    for samples in (64, 128):
        power_limit = make_power_limit(monitor=training, profile_path=path)
        power_limit.count_samples(samples)
        train(power_limit, training, 30)
        power_limit.close()
    assert "64 samples a step" in path.read_text()
    assert "128 samples a step" in path.read_text()
    assert "every batch size" not in caplog.text

    train(make_power_limit(monitor=training, profile_path=path), training, 5)
    assert caplog.text.count("is taken for every batch size") == 1


def test_each_trial_starts_at_its_known_limit_or_is_profiled(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, tmp_path: Path
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    seen: dict[int, list[list[float]]] = {}
    spec = JobSpec(job_id="job", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, max_epochs=3)
    hardware = HardwareKind(gpu_model="H100", max_power_w=700.0, energy_method=EnergyMethod.NVML_COUNTER)
    with BatchSizeOptimizer(spec, hardware=hardware, monitor=training) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        assert not power_limit.is_profiling
        for _ in range(4):
            for trial in bso.trials():
                begun = len(training.limits_w)
                with trial:
                    for _ in range(2):
                        train(power_limit, training, 12)
                    trial.on_evaluate(0.1)
                    for _ in range(2):
                        train(power_limit, training, 12)
                    trial.on_evaluate(0.95)
                seen.setdefault(trial.batch_size, []).append(training.limits_w[begun:])
                assert len(trial.power_profile) == 6

    assert set(seen) == {32, 64}
    assert seen[32][0][:24] == [CHEAPEST_W] * 24, "it trains as 64 is best, until it was evaluated"
    for size, (first, *later) in seen.items():
        waited = 25 if size == 32 else 1
        assert first[waited : waited + 3] == [700.0] * 3, "its own limits are measured, from the highest on"
        assert {200.0, 300.0} <= set(first)
        assert all(set(limits_w) == {CHEAPEST_W} for limits_w in later)


TWO_SIZES = JobSpec(job_id="job", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, early_stopping=False)


def measure_64(bso: BatchSizeOptimizer, *limits_w: float) -> None:
    """A trial of batch size 64, which measures these limits; the lower they are, the cheaper. The next one is of 32."""
    for trial in bso.trials():
        with trial:
            trial.report_power_profile(
                [PowerMeasurement(power_limit_w=w, average_power_w=w, samples_per_s=100.0) for w in limits_w]
            )
            trial.on_evaluate(0.95)


def test_a_batch_size_that_was_never_measured_starts_at_the_best_limit_of_the_nearest_and_measures_its_own(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    """What is measured meanwhile is measured under the limits of its own sweep."""
    caplog.set_level(logging.INFO, "bso")
    gpus.add()
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    with BatchSizeOptimizer(TWO_SIZES, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        measure_64(bso, 700.0, 250.0)
        for trial in bso.trials():
            assert (trial.batch_size, trial.power_profile) == (32, ())
            assert trial.nearest_power_profile is not None
            assert trial.nearest_power_profile.batch_size == 64
            with trial:
                for epoch in range(5):
                    train(power_limit, training, 8)
                    if power_limit.is_profiling:
                        assert (gpus.device(0)["limit_w"], power_limit.power_limit_w) == (250.0, None)
                    trial.on_evaluate(0.95 if epoch == 4 else 0.1)
            assert trial.nearest_power_profile is None
    assert training.limits_w[:17] == [250.0] * 9 + [700.0] * 3 + [600.0] * 3 + [500.0] * 2, "it is evaluated before"
    assert training.limits_w[-1] == CHEAPEST_W
    profile = optimizer.commands(ReportPowerProfile)[-1]
    assert [measured.power_limit_w for measured in profile.measurements] == list(LIMITS_W)
    assert profile.measurements[0].average_power_w == pytest.approx(power_w(700))
    reports = optimizer.commands(ReportEpoch)[1:]
    assert [report.is_profiling for report in reports] == [False, True, True, True, False]
    said = [record.message for record in caplog.records if record.__dict__.get("action") == "power_limit_started"]
    assert said == ["the power limit starts at 250 W, the best one of batch size 64, until this batch size is measured"]


def steep(limit_w: float) -> float:
    """A step's time under a limit, below which the GPU soon slows down by more than it saves."""
    return 0.1 * (1 + (200 / limit_w) ** 6)


def test_limits_below_those_that_take_more_of_everything_are_not_tried(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add(min_limit_w=50.0)
    training = SimulatedTraining(gpus, step_time_s=steep)
    power_limit = make_power_limit(monitor=training, step_w=50)
    train(power_limit, training, 50)
    assert min(training.limits_w) == 150.0, "200 W take more time and energy than 250 W, and 150 W much more"
    assert power_limit.power_limit_w == 350.0
    assert training.limits_w[-10:] == [350.0] * 10


def test_a_sweep_that_ends_before_the_lowest_limit_may_end_with_an_epoch(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add(min_limit_w=50.0)
    training = SimulatedTraining(gpus, step_time_s=steep)
    power_limit = make_power_limit(monitor=training, step_w=50, wait_steps=0)
    train(power_limit, training, 3 * 12)  # as many as there are limits from 700 to 150 W
    assert (power_limit.is_profiling, power_limit.power_limit_w) == (False, 350.0)


def test_a_batch_size_that_has_converged_without_a_profile_waits_for_no_evaluation(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    """Else one that is evaluated at its end alone would never have a profile."""
    gpus.add()
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    with BatchSizeOptimizer(TWO_SIZES, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        measure_64(bso, 250.0)
        begun: list[list[float]] = []
        while len(begun) < 2:
            for trial in bso.trials():
                first = len(training.limits_w)
                with trial:
                    train(power_limit, training, 30)
                    trial.on_evaluate(0.95)
                if trial.batch_size == 32:
                    begun.append(training.limits_w[first:])
    assert begun[0] == [250.0] * 30
    assert set(begun[1]) == set(LIMITS_W)


@pytest.mark.parametrize("steps", [700, 130, 52, 51, 50, 49, 12, 1])
def test_simulated_trainings_make_the_same_steps_under_the_same_limits(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, steps: int
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    power_limit = make_power_limit(monitor=training, warmup_steps=10, profile_steps=40)
    sweep = LimitSweep(MEASURED, nearest=(), chooser=CHOOSER, steps=steps)
    for _ in range(12):
        if sweep.is_done:
            break
        begun = len(training.limits_w)
        train(power_limit, training, steps)
        made = Counter(training.limits_w[begun:])
        assert sweep.next_epoch().shares == pytest.approx({limit_w: count / steps for limit_w, count in made.items()})
        assert sweep.is_done is not power_limit.is_profiling
    assert sweep.is_done
    assert power_limit.power_limit_w == CHEAPEST_W


def test_limits_of_the_nearest_that_cannot_be_set_here_are_not_started_at(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add(min_limit_w=300.0)
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    with BatchSizeOptimizer(TWO_SIZES, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        measure_64(bso, 800.0, 350.0, 100.0)
        for trial in bso.trials():
            with trial:
                train(power_limit, training, 1)
                trial.on_evaluate(0.1)
                train(power_limit, training, 2)
                trial.on_evaluate(0.95)
    assert training.limits_w == [350.0, 350.0, 700.0]


def test_a_start_that_is_refused_is_a_warning_and_the_limits_are_measured_all_the_same(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    gpus.fail("nvmlDeviceSetPowerManagementLimit", [0, 15, *[0] * 9])  # as found, then the start
    with BatchSizeOptimizer(TWO_SIZES, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        measure_64(bso, 250.0)
        for trial in bso.trials():
            with trial:
                train(power_limit, training, 1)
                trial.on_evaluate(0.1)
                train(power_limit, training, 30)
                trial.on_evaluate(0.95)
    assert "the power limit of 250 W could not be set" in caplog.text
    assert "power_limit_started" not in [record.__dict__.get("action") for record in caplog.records]
    profiled = [limit_w for limit_w in LIMITS_W for _ in range(3)]
    assert training.limits_w == [700.0, 700.0, *profiled, *[CHEAPEST_W] * 11]


def test_without_permission_a_known_start_changes_nothing(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, caplog: pytest.LogCaptureFixture
) -> None:
    gpus.add()
    gpus.forbid_limits()
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    with BatchSizeOptimizer(TWO_SIZES, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        measure_64(bso, 250.0)
        for trial in bso.trials():
            with trial:
                train(power_limit, training, 30)
                trial.on_evaluate(0.95)
    assert (set(training.limits_w), gpus.limits_set) == ({700.0}, [])
    assert [record.levelname for record in caplog.records if "power" in record.message] == ["WARNING"]
    assert not any(report.is_profiling for report in optimizer.commands(ReportEpoch))


def test_a_resumed_training_starts_at_the_best_limit_of_the_nearest_too(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add()
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    with BatchSizeOptimizer(TWO_SIZES, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        measure_64(bso, 250.0)
        assert bso.get_batch_size() == 32
        bso.on_train_begin()
        training.step()
        bso.on_evaluate(0.1)
        state = bso.state_dict()
    with BatchSizeOptimizer(TWO_SIZES, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        bso.load_state_dict(state)
        bso.get_batch_size()
        bso.on_train_begin()
        train(make_power_limit(bso, monitor=training), training, 3)
    assert training.limits_w[1:] == [250.0, 700.0, 700.0]


@pytest.mark.parametrize(("eta_knob", "max_power_w"), [(0.9, 700.0), (0.5, 5600.0)])
def test_the_job_s_eta_knob_and_power_decide_the_cost(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, eta_knob: float, max_power_w: float
) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    spec = JobSpec(job_id="job", batch_sizes=[64], default_batch_size=64, target_metric=0.9, eta_knob=eta_knob)
    hardware = HardwareKind(gpu_model="H100", max_power_w=max_power_w, energy_method=EnergyMethod.NVML_COUNTER)
    with BatchSizeOptimizer(spec, hardware=hardware, monitor=training) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        for trial in bso.trials():
            with trial:
                train(power_limit, training, 30)
                trial.on_evaluate(0.95)
    expected = min(LIMITS_W, key=lambda limit_w: step_cost_j(limit_w, eta_knob=eta_knob, max_power_w=max_power_w))
    assert power_limit.power_limit_w == expected != CHEAPEST_W


def test_the_epochs_of_profiling_are_marked_and_the_others_not(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add()
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    with BatchSizeOptimizer(SPEC, hardware=HARDWARE, monitor=training, transport=optimizer) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        for trial in bso.trials():
            with trial:
                for epoch in range(5):
                    train(power_limit, training, 11)
                    trial.on_evaluate(0.95 if epoch == 4 else 0.1)
    assert [report.is_profiling for report in optimizer.commands(ReportEpoch)] == [True, True, False, False, False]
    [profile] = optimizer.commands(ReportPowerProfile)
    assert [measured.power_limit_w for measured in profile.measurements] == list(LIMITS_W)
    assert profile.measurements[0].samples_per_s == pytest.approx(64 / step_time_s(700))
    assert profile.measurements[0].average_power_w == pytest.approx(power_w(700))


def test_while_the_optimizer_is_away_a_profile_is_used_here_and_delivered_later(
    gpus: FakeGpus, make_power_limit: MakePowerLimit
) -> None:
    gpus.add()
    training, optimizer = SimulatedTraining(gpus), ReachableOptimizer()
    with BatchSizeOptimizer(
        SPEC, hardware=HARDWARE, monitor=training, transport=optimizer, unreachable_timeout=0.2
    ) as bso:
        power_limit = make_power_limit(bso, monitor=training)
        for number in range(2):
            for trial in bso.trials():
                optimizer.is_away = True
                with trial:
                    train(power_limit, training, 30)
                    trial.on_evaluate(0.95)
            assert optimizer.commands(ReportPowerProfile) == []
            assert number == 0 or set(training.limits_w[30:]) == {CHEAPEST_W}
        optimizer.is_away = False
        eventually(lambda: optimizer.commands(ReportPowerProfile), timeout_s=60)


def test_a_copy_in_another_process_does_nothing(gpus: FakeGpus, make_power_limit: MakePowerLimit) -> None:
    gpus.add()
    power_limit = make_power_limit()
    copy = pickle.loads(pickle.dumps(power_limit))
    assert list(copy.steps("abc")) == ["a", "b", "c"]
    copy.close()
    assert (copy.power_limit_w, copy.is_profiling, gpus.limits_set) == (None, False, [])


def test_a_monitor_in_the_place_of_the_optimizer_is_refused_with_its_right_place() -> None:
    with pytest.raises(InvalidSetting, match="pass a monitor as monitor="):
        PowerLimitOptimizer(SimpleNamespace(begin_window=print, end_window=print))


async def test_an_asynchronous_optimizer_is_refused() -> None:
    async with AsyncBatchSizeOptimizer(SPEC) as bso:
        with pytest.raises(InvalidSetting, match="for an AsyncBatchSizeOptimizer there is no power limit"):
            PowerLimitOptimizer(bso)


def test_it_ends_with_its_block(gpus: FakeGpus, make_power_limit: MakePowerLimit) -> None:
    gpus.add()
    training = SimulatedTraining(gpus)
    with make_power_limit(monitor=training) as power_limit:
        train(power_limit, training, 5)
    assert (gpus.device(0)["limit_w"], training.open) == (700.0, {})
    train(power_limit, training, 5)  # without effect
    assert training.limits_w[5:] == [700.0] * 5


def test_a_step_before_the_first_trial_is_an_error_of_use(gpus: FakeGpus, make_power_limit: MakePowerLimit) -> None:
    gpus.add()
    with BatchSizeOptimizer(JobSpec(job_id="job", batch_sizes=[64], default_batch_size=64)) as bso:
        power_limit = make_power_limit(bso)
        with pytest.raises(WrongOrder, match="get_batch_size"):
            power_limit.on_step_begin()
        with pytest.raises(InvalidSetting, match="profile_key is for trainings without a job"):
            PowerLimitOptimizer(bso, profile_key="key")


@pytest.mark.parametrize(
    ("name", "value"),
    [("wait_steps", -1), ("warmup_steps", -1), ("profile_steps", 0), ("step_w", 0), ("samples_per_step", -1.0)],
)
def test_impossible_numbers_are_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} must be .*, got {value}"):
        PowerLimitOptimizer(**{name: value})  # type: ignore[arg-type]  # that is the test


def test_something_else_than_an_optimizer_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="expected a BatchSizeOptimizer or None as the first argument, got int"):
        PowerLimitOptimizer(25)
