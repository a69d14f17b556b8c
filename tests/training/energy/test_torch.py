"""Windows beside a real PyTorch, which has no CUDA here: it must not be initialised by measuring."""

import torch

from bso_client.energy.energy_monitor import synchronize


def test_a_pytorch_that_does_not_use_cuda_is_left_alone() -> None:
    assert not torch.cuda.is_initialized()

    synchronize([0, 1])

    assert not torch.cuda.is_initialized()
