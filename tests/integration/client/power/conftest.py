from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bso_client import once
from bso_client.power.optimizer import PowerLimitOptimizer
from tests.fakes import gpus as fake_gpus
from tests.fakes.gpus import FakeGpus

MakePowerLimit = Callable[..., PowerLimitOptimizer]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpus:
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE", "BSO_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BSO_STATE_DIR", str(tmp_path / "state"))
    return fake_gpus.install(monkeypatch, tmp_path)


@pytest.fixture
def make_power_limit(tmp_path: Path) -> Iterator[MakePowerLimit]:
    """Made with few steps per limit, and closed at the end of the test."""
    once.said.clear()  # a process logs it once
    made: list[PowerLimitOptimizer] = []

    def make(bso: Any = None, **options: Any) -> PowerLimitOptimizer:
        few: dict[str, Any] = {"warmup_steps": 1, "profile_steps": 2, "step_w": 100, "lock_folder": tmp_path}
        made.append(PowerLimitOptimizer(bso, **few | options))
        return made[-1]

    yield make
    for power_limit in made:
        power_limit.close()
