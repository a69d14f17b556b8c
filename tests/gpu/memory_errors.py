"""Runs a real GPU out of memory in the ways that libraries have, and prints what they raised: one JSON object.

python -m tests.gpu.memory_errors full|context|torch|cupy|jax|numba
"""

# ruff: noqa: T201  # it prints

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bso_client.failures import is_out_of_memory

FULL = ("allocator", "cusolver", "nccl", "context")
"""What may fail when all of the memory is taken. cuBLAS, cuDNN and cuFFT found room for their handles all the same."""
STORIES = {"torch": "torch", "cupy": "cupy", "jax": "jax", "numba": "numba"}
"""Those that ask for more than the GPU has, and the library that they need."""

TOO_MUCH = 2**40
NOTHING = "nothing was raised"


def found(attempts: Mapping[str, Callable[[], object]]) -> dict[str, Any]:
    """What each attempt raised."""
    return {name: _raised_by(attempt) for name, attempt in attempts.items()}


def _raised_by(attempt: Callable[[], object]) -> dict[str, Any]:
    try:
        attempt()
    except Exception as error:  # noqa: BLE001  # whatever it is, that is what is asked
        kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
        return {"is_out_of_memory": is_out_of_memory(error), "kinds": kinds, "text": str(error)[:600]}
    return {"is_out_of_memory": False, "kinds": [], "text": NOTHING}


def full() -> dict[str, Any]:
    """What PyTorch uses for the first time when all of the memory is taken, and another process that begins then."""
    torch: Any = importlib.import_module("torch")
    small = torch.randn(64, 64, device="cuda")
    symmetric = small + small.T
    torch.cuda.synchronize()
    taken = _take_all(torch)
    report = found(
        {
            "allocator": lambda: torch.empty(2**30, dtype=torch.uint8, device="cuda"),
            "cusolver": lambda: _done(torch, torch.linalg.eigh(symmetric)),
            "nccl": lambda: _nccl(torch, small),
        }
    )
    command = [sys.executable, "-m", "tests.gpu.memory_errors", "context"]
    report |= json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    del taken
    return report


def _take_all(torch: Any) -> list[Any]:
    """All memory in ever smaller pieces, but for some of the smallest: there is room for the result of an operation."""
    taken: list[Any] = []
    for exponent in range(34, 19, -1):
        with contextlib.suppress(torch.OutOfMemoryError):
            while True:
                taken.append(torch.empty(2**exponent, dtype=torch.uint8, device="cuda"))
    del taken[-7::2]
    return taken


def _done(torch: Any, result: Any) -> Any:
    torch.cuda.synchronize()
    return result


def _nccl(torch: Any, tensor: Any) -> None:
    distributed = torch.distributed
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    distributed.all_reduce(tensor)
    torch.cuda.synchronize()


def of_context() -> dict[str, Any]:
    """A process that begins to use the GPU."""
    torch: Any = importlib.import_module("torch")
    return found({"context": lambda: torch.ones(1, device="cuda")})


def of_torch() -> dict[str, Any]:
    """PyTorch, asked for too much in one piece."""
    torch: Any = importlib.import_module("torch")
    return found({"empty": lambda: torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda")})


def of_cupy() -> dict[str, Any]:
    """CuPy, with its pool and past it."""
    cupy: Any = importlib.import_module("cupy")
    return found(
        {
            "pool": lambda: cupy.empty(TOO_MUCH, dtype=cupy.uint8),
            "runtime": lambda: cupy.cuda.runtime.malloc(TOO_MUCH),
        }
    )


def of_jax() -> dict[str, Any]:
    """JAX, which takes memory as it needs it."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    numpy: Any = importlib.import_module("jax.numpy")
    return found({"zeros": lambda: numpy.zeros(TOO_MUCH, dtype=numpy.int8).block_until_ready()})


def of_numba() -> dict[str, Any]:
    """numba, whose errors are of no kind that other libraries have."""
    cuda: Any = importlib.import_module("numba.cuda")
    return found({"array": lambda: cuda.device_array(TOO_MUCH, dtype="uint8")})


_STORIES: dict[str, Callable[[], dict[str, Any]]] = {
    "full": full,
    "context": of_context,
    "torch": of_torch,
    "cupy": of_cupy,
    "jax": of_jax,
    "numba": of_numba,
}

if __name__ == "__main__":
    print(json.dumps(_STORIES[sys.argv[1]]()))
