"""Power limits of several ranks, as torchrun starts them, over gloo."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import gpus as fake_gpus
from tests.fakes.gpus import FakeGpus
from tests.fakes.simulated_training import step_cost_j
from tests.servers import PATIENCE_S

ROOT = Path(__file__).parents[3]
LIMITS_W = (700.0, 600.0, 500.0, 400.0, 300.0, 200.0)
CHEAPEST_W = min(LIMITS_W, key=lambda limit_w: step_cost_j(limit_w, eta_knob=0.5, max_power_w=700))

SCRIPT = """
import json, os, sys
from pathlib import Path
import torch.distributed
from bso_client import *
from tests.fakes.gpus import FakeGpus
from tests.fakes.simulated_training import SimulatedTraining

rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
gpus = FakeGpus.__new__(FakeGpus)
gpus.path = Path(os.environ["BSO_FAKE_NVML"])
training = SimulatedTraining(gpus, rank)
options = {"monitor": training, "warmup_steps": 1, "profile_steps": 2, "step_w": 100, "lock_folder": folder}
torch.distributed.init_process_group("gloo")
noted = {}

def train(power_limit, steps):
    for _ in power_limit.steps(range(steps)):
        training.step()

BODY

noted |= {"limits_w": training.limits_w, "best_w": power_limit.power_limit_w}
(folder / f"rank-{rank}.json").write_text(json.dumps(noted))
torch.distributed.barrier()
power_limit.close()
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpus:
    for name in [name for name in os.environ if name.startswith(("BSO_", "CUDA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BSO_STATE_DIR", str(tmp_path / "state"))
    gpus = fake_gpus.install(monkeypatch, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    for _ in range(2):
        gpus.add()
    return gpus


def run(folder: Path, body: str) -> tuple[list[dict[str, Any]], str]:
    """Run the script with two ranks; what each of them wrote to its file, and what they logged."""
    path = folder / "training_script.py"
    path.write_text(SCRIPT.replace("BODY", textwrap.dedent(body)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(path)]
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(folder)], env=environ, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)], done.stderr


def test_ranks_take_the_same_limits_at_the_same_steps_and_keep_the_same_best_one(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    body = """
    power_limit = PowerLimitOptimizer(profile_path=folder / "profiles.json", samples_per_step=32, **options)
    train(power_limit, 13)
    train(power_limit, 12)
    """
    first, _ = run(tmp_path, body)
    second, _ = run(tmp_path, body)

    assert first[0] == first[1]
    assert first[0]["best_w"] == CHEAPEST_W
    assert set(first[0]["limits_w"]) == set(LIMITS_W)
    assert all(noted == {"limits_w": [CHEAPEST_W] * 25, "best_w": CHEAPEST_W} for noted in second)
    assert [gpus.device(index)["limit_w"] for index in range(2)] == [700.0, 700.0]

    (stored,) = json.loads((tmp_path / "profiles.json").read_text())["profiles"].values()
    highest = stored["measurements"][0]
    assert highest["power_limit_w"] == 700
    assert highest["average_power_w"] == pytest.approx(2 * 695)
    assert highest["samples_per_s"] == pytest.approx(64 / (0.1 * (1 + (2 / 7) ** 3)))


def test_a_slower_gpu_sets_the_pace_of_all(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.change(1, max_limit_w=600.0, default_limit_w=600.0, limit_w=600.0, min_limit_w=300.0)
    noted, _ = run(tmp_path, "power_limit = PowerLimitOptimizer(**options); train(power_limit, 20)")
    assert noted[0] == noted[1]
    assert set(noted[0]["limits_w"]) == {600.0, 500.0, 400.0, 300.0}


def test_ranks_together_leave_out_limits_that_would_only_take_more_of_everything(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    """They see it when the epoch ends, in which they have just begun with the next limit."""
    for index in range(2):
        gpus.change(index, min_limit_w=50.0)
    body = """
    training = SimulatedTraining(gpus, rank, step_time_s=lambda limit_w: 0.1 * (1 + (200 / limit_w) ** 6))
    power_limit = PowerLimitOptimizer(**{**options, "monitor": training, "step_w": 50})
    for _ in range(12):
        train(power_limit, 4)
    """
    noted, said = run(tmp_path, body)
    assert noted[0] == noted[1]
    assert (noted[0]["limits_w"].count(100.0), 50.0 in noted[0]["limits_w"]) == (1, False)
    assert noted[0]["best_w"] == 350.0
    assert "could not agree" not in said


def test_epochs_that_differ_by_a_step_keep_ranks_together(gpus: FakeGpus, tmp_path: Path) -> None:
    body = """
    power_limit = PowerLimitOptimizer(**options)
    for _ in range(6):
        train(power_limit, 7 + rank)
    train(power_limit, 30)
    """
    noted, said = run(tmp_path, body)
    assert [each["best_w"] for each in noted] == [CHEAPEST_W, CHEAPEST_W]
    assert "could not agree" not in said


@pytest.mark.parametrize("steps", [13, 16, 19])
def test_a_rank_whose_profile_is_complete_waits_for_one_at_the_end_of_its_epoch(
    gpus: FakeGpus, tmp_path: Path, steps: int
) -> None:
    body = f"""
    power_limit = PowerLimitOptimizer(**options)
    train(power_limit, 6)  # 700 W is measured
    train(power_limit, {steps} - rank)
    noted["after"] = power_limit.power_limit_w
    train(power_limit, 20)
    """
    noted, said = run(tmp_path, body)
    assert noted[0]["after"] == noted[1]["after"]
    assert [each["best_w"] for each in noted] == [CHEAPEST_W, CHEAPEST_W]
    assert "could not agree" not in said


def test_a_rank_without_permission_leaves_the_limits_of_all_alone(gpus: FakeGpus, tmp_path: Path) -> None:
    gpus.fail("nvmlDeviceSetPowerManagementLimit", 4, index=1)
    noted, said = run(tmp_path, "power_limit = PowerLimitOptimizer(**options); train(power_limit, 20)")
    assert [each["best_w"] for each in noted] == [None, None]
    assert set(noted[0]["limits_w"] + noted[1]["limits_w"]) == {700.0}
    assert said.count("needs root or the right CAP_SYS_ADMIN") == 2  # each rank explains once
    assert "no power limit is tuned: rank 1: " in said


def test_a_limit_that_one_rank_cannot_set_is_left_out_on_all(gpus: FakeGpus, tmp_path: Path) -> None:
    failing = [0, 0, 0, *[999 if limit_w == CHEAPEST_W else 0 for limit_w in LIMITS_W[1:]], *[0] * 9]
    gpus.fail("nvmlDeviceSetPowerManagementLimit", failing, index=1)
    noted, _ = run(tmp_path, "power_limit = PowerLimitOptimizer(**options); train(power_limit, 30)")
    assert noted[0]["best_w"] == noted[1]["best_w"]
    assert noted[0]["best_w"] in (CHEAPEST_W - 100, CHEAPEST_W + 100)


def test_a_rank_that_makes_no_power_limit_optimizer_does_not_hold_up_the_others_for_ever(
    gpus: FakeGpus, tmp_path: Path
) -> None:
    body = """
    from bso_client.distributed.torch_ranks import TorchRanks

    ranks = TorchRanks(timeout_s=15.0)  # instead of half a minute
    power_limit = PowerLimitOptimizer(ranks=ranks, **options)
    ranks.gather("here")
    if rank == 0:
        train(power_limit, 5)
    """
    noted, said = run(tmp_path, body)
    assert noted[0]["limits_w"] == [700.0] * 5
    assert "the ranks could not agree on power limits: not every rank came to PowerLimitOptimizer's hooks" in said


TRIALS = """
spec = JobSpec(job_id="job", batch_sizes=[64], default_batch_size=64, target_metric=0.9, max_epochs=3)
hardware = HardwareKind(gpu_model="H100", max_power_w=1400.0, number_of_gpus=2, energy_method=EnergyMethod.NVML_COUNTER)
bso = BatchSizeOptimizer(spec, hardware=hardware, monitor=training)
power_limit = PowerLimitOptimizer(bso, **options)
for trial in bso.trials():
    with trial:
        while not trial.finished:
            train(power_limit, 30)
            noted["profile"] = [measured.samples_per_s for measured in trial.power_profile]
            trial.on_evaluate(0.95)
bso.close()
"""


def test_the_next_recurrence_of_a_data_parallel_job_starts_at_the_best_limit(gpus: FakeGpus, tmp_path: Path) -> None:
    first, _ = run(tmp_path, TRIALS)
    second, _ = run(tmp_path, TRIALS)
    assert [each["best_w"] for each in first] == [CHEAPEST_W, CHEAPEST_W]
    assert first[0]["limits_w"] == first[1]["limits_w"]
    assert first[0]["profile"][0] == pytest.approx(64 / (0.1 * (1 + (2 / 7) ** 3)))
    assert [each["limits_w"] for each in second] == [[CHEAPEST_W] * 30] * 2


def test_ranks_start_together_at_the_best_limit_of_the_nearest_batch_size(gpus: FakeGpus, tmp_path: Path) -> None:
    body = """
    spec = JobSpec(
        job_id="job", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, max_epochs=3, early_stopping=False
    )
    hardware = HardwareKind(
        gpu_model="H100", max_power_w=1400.0, number_of_gpus=2, energy_method=EnergyMethod.NVML_COUNTER
    )
    bso = BatchSizeOptimizer(spec, hardware=hardware, monitor=training)
    for trial in bso.trials():
        with trial:
            trial.report_power_profile([PowerMeasurement(power_limit_w=250, average_power_w=400, samples_per_s=9)])
            trial.on_evaluate(0.95)
    power_limit = PowerLimitOptimizer(bso, **options)
    for trial in bso.trials():
        noted["known"] = [trial.batch_size, trial.nearest_power_profile.batch_size]
        with trial:
            train(power_limit, 6)
            noted["between"] = gpus.device(rank)["limit_w"]
            trial.on_evaluate(0.1)
            train(power_limit, 20)
            trial.on_evaluate(0.95)
    """
    noted, said = run(tmp_path, body)
    assert noted[0] == noted[1]
    assert (noted[0]["known"], noted[0]["between"]) == ([32, 64], 250.0)
    assert noted[0]["limits_w"][:12] == [250.0] * 6 + [700.0] * 3 + [600.0] * 3
    assert noted[0]["best_w"] == CHEAPEST_W
    assert said.count("the power limit starts at") <= 2
