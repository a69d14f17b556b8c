"""Optimizers on a SQLite file, and small data."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from bso_client import BatchSizeOptimizer, JobSpec
from tests.unit.client.doubles import HARDWARE, ScriptedMonitor

MakeOptimizer = Callable[..., BatchSizeOptimizer]


@pytest.fixture
def monitor() -> ScriptedMonitor:
    """Measures 10 J in each window."""
    return ScriptedMonitor()


@pytest.fixture
def make_bso(tmp_path: Path, monitor: ScriptedMonitor) -> Iterator[MakeOptimizer]:
    """Optimizers of one job; costs are joules alone. Its recorded trials: tests.integration.client.scripts."""
    made: list[BatchSizeOptimizer] = []

    def make(**fields: Any) -> BatchSizeOptimizer:
        chosen: dict[str, Any] = {
            "job_id": "job",
            "batch_sizes": [8, 16, 32],
            "default_batch_size": 16,
            "target_metric": 0.9,
            "max_epochs": 5,
            "eta_knob": 1.0,
        }
        state = tmp_path / "state"
        spec = JobSpec(**{"policy": "pruning_thompson"} | chosen | fields)
        url = f"sqlite:///{state}/bso.sqlite"
        state.mkdir(exist_ok=True)
        made.append(BatchSizeOptimizer(spec, url=url, state_dir=state, hardware=HARDWARE, monitor=monitor))
        return made[-1]

    yield make
    for bso in made:
        bso.close(timeout=1.0)


@pytest.fixture
def bso(make_bso: MakeOptimizer) -> BatchSizeOptimizer:
    return make_bso()


@pytest.fixture
def numbers() -> TensorDataset:
    """0.0 to 99.0, one a sample."""
    return TensorDataset(torch.arange(100.0))
