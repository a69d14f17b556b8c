"""Work that keeps a GPU busy."""

from collections.abc import Callable
from typing import Any

PRODUCTS_A_ROUND = 25
"""Of matrices with 8192 rows: about 40 ms on an H100, so that power can be sampled between two rounds."""


class Products:
    """Matrix products of random numbers: a load that is the same all the time, and close to the power limit."""

    def __init__(self, torch: Any, *, rows: int = 8192) -> None:
        self._torch = torch
        self._left, self._right = (torch.randn(rows, rows, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self._result = torch.empty_like(self._left)

    def launch(self, count: int = PRODUCTS_A_ROUND) -> None:
        """Give the GPU so many products to do, and do not wait for them."""
        for _ in range(count):
            self._torch.mm(self._left, self._right, out=self._result)

    def run(self, rounds: int, *, after_each: Callable[[], object] = lambda: None) -> None:
        """Do so many rounds; the GPU always has the next round before it has finished one."""
        before = None
        for _ in range(rounds):
            self.launch()
            done = self._torch.cuda.Event()
            done.record()
            if before is not None:
                before.synchronize()
            before = done
            after_each()
        self._torch.cuda.synchronize()
