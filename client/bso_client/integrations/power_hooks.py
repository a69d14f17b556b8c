"""A power limit optimizer driven by somebody else's training loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger("bso")


class PowerLimit(Protocol):
    """What is needed of a power limit optimizer; bso_client's PowerLimitOptimizer is one."""

    def on_epoch_begin(self) -> None:
        """Steps follow."""
        ...

    def on_epoch_end(self) -> None:
        """Something else follows."""
        ...

    def on_step_begin(self) -> None:
        """A step follows."""
        ...

    def on_step_end(self) -> None:
        """The step is over."""
        ...


class PowerHooks:
    """Calls the hooks of a power limit optimizer; an evaluation or a checkpoint ends a row of steps like an epoch.

    An error of the optimizer is logged, and it is not called again: the training goes on. None: it does nothing.
    """

    def __init__(self, power_limit: PowerLimit | None) -> None:
        self._power_limit = power_limit
        self._is_in_row = False

    def step_has(self, samples: float) -> None:
        """Pass the samples of a step of this process to an optimizer that needs them."""
        count_samples = getattr(self._power_limit, "count_samples", None)
        if count_samples is not None:
            self._call(lambda: count_samples(samples))

    def step_begins(self) -> None:
        """A training step begins."""
        if self._power_limit is None:
            return
        if not self._is_in_row:
            self._is_in_row = True
            self._call(self._power_limit.on_epoch_begin)
        if self._power_limit is not None:
            self._call(self._power_limit.on_step_begin)

    def step_ends(self) -> None:
        """A training step has ended."""
        if self._power_limit is not None and self._is_in_row:
            self._call(self._power_limit.on_step_end)

    def row_ends(self) -> None:
        """The epoch ends, or an evaluation or a checkpoint comes, or the training ends. Without effect between rows."""
        if self._power_limit is not None and self._is_in_row:
            self._is_in_row = False
            self._call(self._power_limit.on_epoch_end)

    def _call(self, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception:  # a trainer must not end because of this
            self._power_limit = None
            logger.exception("the power limit is left as it is", extra={"action": "power_limit_failed"})
