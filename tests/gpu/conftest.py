"""Tests on a real NVIDIA GPU with a PyTorch that uses it: `make test-gpu`. They only read the GPU's power limits."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bso_client.energy.nvml import Gpu, Nvml, NvmlError


@pytest.fixture(scope="session")
def torch() -> Any:
    """PyTorch, on a GPU. Where one of them is missing the test fails: it was asked for."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        pytest.fail(f"make test-gpu needs PyTorch with CUDA: {error}", pytrace=False)
    if not torch.cuda.is_available():
        pytest.fail(
            f"make test-gpu needs an NVIDIA GPU: PyTorch {torch.__version__} finds none that it can use", pytrace=False
        )
    return torch


@pytest.fixture
def gpu(torch: Any) -> Iterator[Gpu]:
    """The first GPU that this process sees, by NVML."""
    try:
        with Nvml() as nvml:
            yield nvml.visible_gpus(None)[0]
    except NvmlError as error:
        pytest.fail(f"make test-gpu needs NVML: {error}", pytrace=False)


@pytest.fixture(autouse=True)
def _as_a_training_is_started(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Energy is measured, notes are the test's own, and what the test has taken of the GPU's memory is given back."""
    monkeypatch.setenv("BSO_ENERGY", "auto")
    monkeypatch.setenv("BSO_STATE_DIR", str(tmp_path / "state"))
    yield
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
