"""One training on a real GPU, from its meter to what the commands show of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bso_client import BatchSizeOptimizer, EnergyMethod, JobSpec
from bso_client.energy.nvml import Gpu
from tests.gpu.load import Products
from tests.integration.client.scripts import recorded_trials
from tests.servers import PATIENCE_S

SPEC = JobSpec(job_id="job", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, eta_knob=0.3)

LONG = JobSpec(job_id="job", batch_sizes=[32], default_batch_size=32, target_metric=0.9)


def printed(*arguments: str) -> str:
    """What a command of bso prints, which must end well."""
    command = [sys.executable, "-m", "bso_cli", *arguments]
    done = subprocess.run(
        command, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def train(torch: Any) -> list[float]:
    """A training of three epochs, in which the GPU works; its cost after each."""
    load, costs = Products(torch), []
    with BatchSizeOptimizer(SPEC) as bso:
        for trial in bso.trials():
            with trial:
                for metric in (0.3, 0.6, 0.95):
                    load.run(10)
                    trial.on_evaluate(metric)
                    costs.append(trial.cost)
    return costs


def test_the_cost_of_a_training_is_that_of_its_measured_energy_and_time(torch: Any, gpu: Gpu, tmp_path: Path) -> None:
    before_j = gpu.energy_j()
    costs = train(torch)
    consumed_j = gpu.energy_j() - before_j

    [trial] = recorded_trials(tmp_path)
    assert trial.epoch == len(costs) == 3
    assert trial.hardware.energy_method is EnergyMethod.NVML_COUNTER
    assert trial.hardware.gpu_model == torch.cuda.get_device_name(0)
    assert trial.hardware.number_of_gpus == 1
    assert trial.hardware.memory_mib == gpu.memory_mib
    assert trial.hardware.max_power_w == gpu.power_limits_w[1]
    assert trial.is_energy_complete
    assert 0 < trial.energy_j <= consumed_j
    expected = 0.3 * trial.energy_j + 0.7 * trial.hardware.max_power_w * trial.time_s
    assert trial.cost == pytest.approx(expected, rel=1e-9)
    assert costs[-1] == pytest.approx(trial.cost, rel=1e-9)


def test_how_often_a_training_is_evaluated_hardly_changes_its_energy(torch: Any, tmp_path: Path) -> None:
    load = Products(torch)
    load.run(25)
    energies_j = {}
    for rounds in (1, 2, 4, 64):  # the shortest epochs take half an interval between two updates of the counter
        folder = tmp_path / str(rounds)
        with BatchSizeOptimizer(LONG, state_dir=folder / "state") as bso:
            for trial in bso.trials():
                with trial:
                    for left in range(64 // rounds - 1, -1, -1):
                        load.run(rounds)
                        trial.on_evaluate(0.1 if left else 0.95)
        [recorded] = recorded_trials(folder)
        energies_j[rounds] = recorded.energy_j

    assert all(energy_j == pytest.approx(energies_j[64], rel=0.1) for energy_j in energies_j.values()), energies_j


def test_the_commands_show_the_gpu_and_what_a_training_has_cost_on_it(torch: Any) -> None:
    name = torch.cuda.get_device_name(0)
    train(torch)

    doctor = json.loads(printed("doctor", "--json"))
    found = [each["found"] for each in doctor["findings"]]
    assert doctor["is_healthy"]
    assert f"GPUs are measured: 0: {name} (energy counter)" in found
    assert not any("energy is assumed" in each for each in found)

    shown = printed("jobs", "show", "job")
    assert name in shown
    assert "converged" in shown


def test_a_command_is_measured(torch: Any) -> None:
    [seen] = printed("monitor", "--json", "--", sys.executable, "-c", "pass").splitlines()

    assert torch.cuda.get_device_name(0) in seen
