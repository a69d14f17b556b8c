"""Jobs that Zeus' own server decides for: what trainings with each batch size need, and how they live."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import aiosqlite

from tests.benchmarks.zeus import peer

HERE = Path(__file__).parent
WATTS = 200.0
MAX_POWER_W = 300.0
ETA = 0.5
EPOCHS = {32: 11, 64: 12, 128: 20, 256: 45}
EPOCH_S = {32: 40.0, 64: 25.0, 128: 20.0, 256: 16.0}
NIGHTLY: dict[str, Any] = {
    "job_id": "nightly",
    "job_id_prefix": "night",
    "batch_sizes": [32, 64, 128, 256],
    "default_batch_size": 128,
    "eta_knob": ETA,
    "beta_knob": 2.0,
    "target_metric": 0.9,
    "max_epochs": 60,
    "mab_seed": 1,
    "max_power": MAX_POWER_W,
    "number_of_gpus": 1,
    "gpu_model": "NVIDIA A40",
}


def cost_j(size: int) -> float:
    """The cost [J] of a training with a batch size to its target."""
    return EPOCHS[size] * EPOCH_S[size] * (ETA * WATTS + (1 - ETA) * MAX_POWER_W)


CHEAPEST = min(EPOCHS, key=cost_j)


def job(**changes: Any) -> dict[str, Any]:
    """A job for the server; ``lives``, ``epochs`` and ``epoch_s`` beside the fields of its specification."""
    apart: dict[str, Any] = {name: changes.pop(name) for name in ("lives", "epochs", "epoch_s") if name in changes}
    known: dict[str, Any] = {
        "epochs": {str(size): count for size, count in EPOCHS.items()},
        "epoch_s": {str(size): seconds for size, seconds in EPOCH_S.items()},
        "lives": ["train"] * 10,
    }
    return {"spec": {**NIGHTLY, **changes}, "watts": WATTS, **known, **apart}


JOBS = [
    job(),
    job(job_id="night-odd", lives=["train", "crash", "hang", "train", "train", "hang", "train"]),
    job(
        job_id="night-loss",
        target_metric=0.1,
        higher_is_better_metric=False,
        beta_knob=None,
        window_size=3,
        lives=["train"] * 12,
        epochs={"32": None, "64": 12, "128": 20, "256": 45},
    ),
]


def decide_at_zeus(url: str, jobs: list[dict[str, Any]], folder: Path) -> None:
    """Let Zeus' server decide for jobs, and keep that in its database. ``folder`` is for what it lacks.

    Raises SubprocessError.
    """
    drivers = folder / "drivers"
    drivers.mkdir(exist_ok=True)
    if not (drivers / "aiosqlite").exists():  # the peer's environment reaches MySQL only
        (drivers / "aiosqlite").symlink_to(Path(aiosqlite.__file__).parent)
    environ = {**os.environ, "ZEUS_BSO_DATABASE_URL": url, "PYTHONPATH": str(drivers)}
    command = [peer.python().absolute(), HERE / "zeus_server.py"]
    subprocess.run(
        command, env=environ, input=json.dumps(jobs), text=True, check=True, stdout=subprocess.DEVNULL, timeout=300
    )
