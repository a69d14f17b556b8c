"""The learning rate of a training, and how it follows the batch size."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

from bso.domain.job_spec import MAX_BATCH_SIZE

ScalingRule = Literal["linear", "square_root", "none"]
"""``linear``: in proportion to the batch size, for SGD (Goyal et al. 2017, arXiv:1706.02677). ``square_root``: with its
square root, for Adam and its kin (Krizhevsky 2014, arXiv:1404.5997). ``none``: the same for every batch size."""

MAX_LEARNING_RATE = 1e9


@dataclass(frozen=True, slots=True)
class LearningRate:
    """A learning rate: ``value`` at ``reference_batch_size`` [samples], and the ``rule`` that gives it at others.

    ``linear`` is the rule of Goyal et al. 2017 for SGD, ``square_root`` that of Krizhevsky 2014, which suits Adam,
    ``none`` leaves the rate alone. Making one raises nothing: BatchSizeOptimizer raises InvalidSetting for a value
    that is not positive, a reference below 1, or another rule.
    """

    value: float
    _: KW_ONLY
    reference_batch_size: int
    rule: ScalingRule = "linear"

    def at(self, batch_size: int) -> float:
        """The rate for a batch size."""
        ratio = batch_size / self.reference_batch_size
        if self.rule == "linear":
            return self.value * ratio
        return self.value * math.sqrt(ratio) if self.rule == "square_root" else self.value

    def describe(self) -> str:
        """The rate in a few words, for people."""
        if self.rule == "none":
            return f"{self.value:g} for every batch size"
        return f"{self.value:g} at batch size {self.reference_batch_size}, {self.rule.replace('_', ' ')} scaling"


def learning_rate_problems(rate: LearningRate) -> dict[str, str]:
    """What is wrong with a learning rate, by field; empty if nothing is."""
    problems: dict[str, str] = {}
    if not 0 < rate.value <= MAX_LEARNING_RATE:
        problems["learning_rate.value"] = f"must be a positive number, at most {MAX_LEARNING_RATE:g}, got {rate.value}"
    if not 1 <= rate.reference_batch_size <= MAX_BATCH_SIZE:
        problems["learning_rate.reference_batch_size"] = (
            f"must be a batch size from 1 to {MAX_BATCH_SIZE}, got {rate.reference_batch_size}"
        )
    if rate.rule not in get_args(ScalingRule):
        problems["learning_rate.rule"] = f"must be one of {', '.join(get_args(ScalingRule))}, got {rate.rule!r}"
    return problems
