"""Waits for the work that a training has handed to its GPUs, so that a window holds what belongs to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def synchronize(gpu_indices: Sequence[int]) -> None:
    """Wait for the GPUs that PyTorch uses in this process; nothing where it is not loaded or uses none.

    A GPU that this process has not touched is not waited for: that alone would claim memory on it.
    """
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    for index in gpu_indices:
        if _is_in_use(torch, index):
            cuda.synchronize(index)


def _is_in_use(torch: Any, index: int) -> bool:
    has_context = getattr(getattr(torch, "_C", None), "_cuda_hasPrimaryContext", None)
    return bool(has_context(index)) if has_context is not None else bool(torch.cuda.current_device() == index)
