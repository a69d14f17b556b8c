from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bso_client import EnergyMonitor
from tests.fakes import gpus as fake_gpus
from tests.fakes.gpus import FakeGpus
from tests.fakes.powercap import FakePowercap

MakeMonitor = Callable[..., EnergyMonitor]


class Clock:
    """Stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpus:
    """A machine whose driver knows no GPU yet."""
    return fake_gpus.install(monkeypatch, tmp_path)


@pytest.fixture
def powercap(tmp_path: Path) -> FakePowercap:
    """A machine whose processor has no counters yet."""
    return FakePowercap(tmp_path / "powercap")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_monitor(gpus: FakeGpus, powercap: FakePowercap, clock: Clock) -> Iterator[MakeMonitor]:
    made: list[EnergyMonitor] = []

    def make(
        *indices: Any, visible: str | None = None, clock: Callable[[], float] = clock, **environ: str
    ) -> EnergyMonitor:
        if visible is not None:
            environ["CUDA_VISIBLE_DEVICES"] = visible
        made.append(EnergyMonitor(*indices, environ=environ, rapl_root=powercap.root, clock=clock))
        return made[-1]

    yield make
    for monitor in made:
        monitor.close()
