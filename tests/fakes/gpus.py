"""A machine with NVIDIA GPUs that are not there, for this process and its children."""

import fcntl
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "nvml"
"""Holds the fake pynvml; on PYTHONPATH it comes before the real one."""


CUDA = Path(__file__).parent / "cuda"


def with_cuda(gpus: "FakeGpus") -> dict[str, str]:
    """The environment of a child process on such a machine, whose torch takes it for one with CUDA."""
    environ = gpus.environment
    return {**environ, "PYTHONPATH": os.pathsep.join([environ["PYTHONPATH"], str(CUDA)])}


class FakeGpus:
    """Controls the machine that tests/fakes/nvml/pynvml.py plays, a new one where the file is missing.

    Powers in watts, energies in joules.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_text(json.dumps({"devices": [], "errors": {}, "is_root": True, "limits_set": []}))

    @property
    def environment(self) -> dict[str, str]:
        """What a child process needs in its environment to be on this machine (with what PYTHONPATH held before)."""
        return {"BSO_FAKE_NVML": str(self.path), "PYTHONPATH": str(FOLDER)}

    def add(self, *, name: str = "NVIDIA H100 80GB HBM3", **differences: Any) -> int:
        """One more GPU; returns its index. Pass energy_j=None for one without a counter, mig_mode=1 for MIG."""
        with self._machine() as machine:
            index = len(machine["devices"])
            device = {
                "uuid": f"GPU-{index:08x}-7d3a-11ee-b962-0242ac120002",
                "name": name,
                "memory_mib": 81559,
                "energy_j": 1000.0,
                "counting_since": None,  # time.monotonic() from which on the counter grows with power_w
                "power_w": 100.0,
                "limit_w": 700.0,
                "default_limit_w": 700.0,
                "min_limit_w": 200.0,
                "max_limit_w": 700.0,
                "mig_mode": 0,
                "slices": [],  # of a GPU in MIG mode: uuid, name, memory_mib
                "errors": {},
            }
            machine["devices"].append(device | differences)
            return index

    def change(self, index: int, **changes: Any) -> None:
        """Give a GPU other properties."""
        with self._machine() as machine:
            machine["devices"][index].update(changes)

    def consume(self, index: int, energy_j: float) -> None:
        """Move the energy counter of a GPU on; a negative number moves it back, as loading the driver anew does."""
        with self._machine() as machine:
            machine["devices"][index]["energy_j"] += energy_j

    def run(self, index: int, *, power_w: float) -> None:
        """From now on the GPU draws this power, and its counter grows with it."""
        self.change(index, power_w=power_w, counting_since=time.monotonic())

    def fail(self, function: str, code: int | list[int], *, index: int | None = None) -> None:
        """Let a function of pynvml fail from now on (a list: one code per call, 0 succeeds), for one GPU or at all."""
        with self._machine() as machine:
            thing = machine if index is None else machine["devices"][index]
            thing["errors"][function] = code

    def forbid_limits(self) -> None:
        """Be somebody who may not set power limits."""
        with self._machine() as machine:
            machine["is_root"] = False

    def device(self, index: int) -> Mapping[str, Any]:
        """A GPU as it is now."""
        with self._machine() as machine:
            return dict(machine["devices"][index])

    @property
    def limits_set(self) -> list[tuple[int, float]]:
        """Every power limit [W] that was set, with the GPU's index, in order."""
        with self._machine() as machine:
            return [(index, limit_w) for index, limit_w in machine["limits_set"]]

    @contextmanager
    def _machine(self) -> Iterator[dict[str, Any]]:
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            machine = json.loads(self.path.read_text(encoding="utf-8"))
            yield machine
            self.path.write_text(json.dumps(machine), encoding="utf-8")


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> FakeGpus:
    """A machine without a GPU yet, as this process and the processes that it starts see it, until the test ends."""
    gpus = FakeGpus(folder / "gpus.json")
    monkeypatch.setenv("BSO_FAKE_NVML", gpus.environment["BSO_FAKE_NVML"])
    monkeypatch.setenv("PYTHONPATH", gpus.environment["PYTHONPATH"], prepend=":")
    monkeypatch.setitem(sys.modules, "pynvml", _load())
    return gpus


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pynvml", FOLDER / "pynvml.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
