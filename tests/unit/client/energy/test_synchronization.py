"""Windows wait for the GPUs that PyTorch uses, and for no others. PyTorch itself is tested in tests/training."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from bso_client.energy.energy_monitor import synchronize
from tests.fakes.gpus import FakeGpus
from tests.unit.client.energy.conftest import MakeMonitor


class FakeTorch(ModuleType):
    """As much of PyTorch with CUDA as is asked: it uses some GPUs, and notes for which somebody waits."""

    def __init__(self, *, in_use: tuple[int, ...], has_contexts: bool = True) -> None:
        super().__init__("torch")
        self.waited_for: list[int] = []
        self.error: Exception | None = None
        self._in_use = in_use
        self.cuda = SimpleNamespace(
            is_initialized=lambda: bool(in_use), current_device=lambda: in_use[0], synchronize=self._synchronize
        )
        self._C = SimpleNamespace(_cuda_hasPrimaryContext=in_use.__contains__) if has_contexts else SimpleNamespace()

    def _synchronize(self, index: int) -> None:
        if self.error is not None:
            raise self.error
        self.waited_for.append(index)


def torch_with(monkeypatch: pytest.MonkeyPatch, *in_use: int, has_contexts: bool = True) -> FakeTorch:
    torch = FakeTorch(in_use=in_use, has_contexts=has_contexts)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_without_pytorch_nothing_is_waited_for_and_nothing_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    synchronize([0, 1])

    assert "torch" not in sys.modules


def test_where_pytorch_does_not_use_cuda_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = torch_with(monkeypatch)

    synchronize([0])

    assert torch.waited_for == []


def test_gpus_that_the_process_has_not_touched_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = torch_with(monkeypatch, 0, 2)

    synchronize([0, 1, 2, 3])

    assert torch.waited_for == [0, 2]


def test_where_pytorch_does_not_say_which_gpus_it_uses_the_current_one_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = torch_with(monkeypatch, 1, has_contexts=False)

    synchronize([0, 1])

    assert torch.waited_for == [1]


def test_both_ends_of_a_window_wait(monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus, make_monitor: MakeMonitor) -> None:
    gpus.add()
    monitor = make_monitor()
    torch = torch_with(monkeypatch, 0)
    monitor.begin_window("w")
    monitor.end_window("w")
    monitor.begin_window("without", sync_execution=False)
    monitor.end_window("without", sync_execution=False)

    assert torch.waited_for == [0, 0]


def test_an_error_of_the_training_is_not_raised_by_the_monitor(
    monkeypatch: pytest.MonkeyPatch, gpus: FakeGpus, make_monitor: MakeMonitor
) -> None:
    gpus.add()
    monitor = make_monitor()
    torch = torch_with(monkeypatch, 0)
    torch.error = RuntimeError("CUDA error: an illegal memory access was encountered")
    monitor.begin_window("w")
    gpus.consume(0, 1.0)

    assert monitor.end_window("w").total_energy == 1.0
