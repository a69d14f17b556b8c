"""What the stories share: scripts that torchrun starts, each rank of which writes down what it saw."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bso_client import BatchSizeOptimizer, JobSpec

FOLDER = Path(os.environ.get("STORY_FOLDER", "."))
RANK = int(os.environ.get("RANK", "0"))
LAUNCH = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def say(**facts: Any) -> None:
    """Write down what this rank saw, for the test to read."""
    with (FOLDER / f"rank-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\n")


def said(call: Callable[[], Any]) -> list[str]:
    """Type and words of what a call raises; empty if it raises nothing."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  # that is what is asked
        return [type(error).__name__, str(error)]
    return []


def join() -> None:
    """Form the training's own process group."""
    dist.init_process_group("gloo")


def job_spec(**fields: Any) -> JobSpec:
    """A job of which energy alone is the cost."""
    chosen: dict[str, Any] = {
        "job_id": "job",
        "batch_sizes": [32, 64, 128],
        "default_batch_size": 64,
        "target_metric": 0.9,
        "max_epochs": 5,
        "eta_knob": 1.0,
    }
    return JobSpec(**{"policy": "pruning_thompson"} | chosen | fields)


def options(**more: Any) -> dict[str, Any]:
    """One database for all, and a state directory for each rank: it shows who keeps notes."""
    url = os.environ.get("BSO_URL") or f"sqlite:///{FOLDER}/bso.sqlite"
    return {"url": url, "state_dir": FOLDER / f"state-{RANK}", "rank_timeout": 120.0} | more


def make_bso(spec: JobSpec | None = None, **more: Any) -> BatchSizeOptimizer:
    """An optimizer of this rank."""
    return BatchSizeOptimizer(spec or job_spec(), **options(**more))


class ScriptedMonitor:
    """Measures the joules of each window that it was given."""

    def __init__(self, energy_j: float) -> None:
        self.energy_j = energy_j

    def begin_window(self, key: str, /) -> None:
        """Nothing."""

    def end_window(self, key: str, /) -> Any:
        """The joules it was given."""
        return type("Measured", (), {"time": 1.0, "total_energy": self.energy_j})
