"""Noise: by how much what an epoch costs differs from run to run, though nothing has changed.

The grammar, parts separated by commas::

    run:S           each run costs exp(S z) times as much per epoch, z standard normal, drawn once for the run
    epoch:S         each epoch likewise, drawn for each
    spikes:PxF      a run costs F times as much with probability P: its node was shared
    node:S[xN]      all runs of some recurrences cost exp(S z) times as much: N of them on the mean (5 unless said),
                    then another factor is drawn

The factors are a pure function of the seed, the batch size, and the number of the run or the recurrence, so every
policy, and the oracle, meets the same ones. They leave the order of batch sizes as it is; the median of those of runs,
epochs and nodes is 1.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bso.domain.frozen_values import replace
from bso.domain.randomness import seed_from, standard_normal, uniform
from bso.simulator.errors import InvalidSimulation

GRAMMAR = "run:0.3, epoch:0.3, spikes:0.1x3, node:0.3, node:0.3x10"
_SPREAD = re.compile(r"(?P<what>run|epoch):(?P<deviation>[\d.]+)")
_SPIKES = re.compile(r"spikes:(?P<rate>[\d.]+)x(?P<factor>[\d.]+)")
_NODE = re.compile(r"node:(?P<deviation>[\d.]+)(?:x(?P<length>[\d.]+))?")
_MOST_DEVIATION, _MOST_FACTOR = 2.0, 1000.0
_USUAL_LENGTH = 5.0
_EPOCHS = 1 << 20
"""More epochs than a run has: one draw for each epoch of each batch size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of ln cost per epoch: of ``run``, ``epoch`` and ``node``; and how often a run is a spike.

    ``node_length``: for how many recurrences a node's factor lasts, on the mean.
    """

    run: float = 0.0
    epoch: float = 0.0
    spike_rate: float = 0.0
    spike_factor: float = 1.0
    node: float = 0.0
    node_length: float = _USUAL_LENGTH

    def run_factor(self, seed: int, batch_size: int, run: int, recurrence: int) -> float:
        """By how much the epochs of the run-th run (1, 2, ...) of a batch size cost more than usual."""
        factor = 1.0
        if self.run:
            factor *= math.exp(self.run * standard_normal(seed_from(f"{seed}/run"), run, batch_size))
        if self.spike_rate and uniform(seed_from(f"{seed}/spike"), run, batch_size) < self.spike_rate:
            factor *= self.spike_factor
        if self.node:
            place = _node_of(seed_from(f"{seed}/node"), recurrence, self.node_length)
            factor *= math.exp(self.node * standard_normal(seed_from(f"{seed}/node"), place, 1))
        return factor

    def epoch_factor(self, seed: int, batch_size: int, run: int, epoch: int) -> float:
        """By how much one epoch (1, 2, ...) of a run costs more than the others of this run."""
        if not self.epoch:
            return 1.0
        return math.exp(self.epoch * standard_normal(seed_from(f"{seed}/epoch"), run, batch_size * _EPOCHS + epoch))


NO_NOISE = Noise()


def _node_of(seed: int, recurrence: int, length: float) -> int:
    """The recurrence at which the node of this one began: at each, another one begins with probability 1 / length."""
    while recurrence > 1 and uniform(seed, recurrence, 0) >= 1.0 / length:
        recurrence -= 1
    return recurrence


def parse_noise(text: str) -> Noise:
    """Read the grammar above; an empty text is no noise. Raises InvalidSimulation, which shows the grammar."""
    noise = NO_NOISE
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            noise = _with_part(noise, part)
        except ValueError as error:
            raise InvalidSimulation(f"noise {part!r} holds no number; examples are {GRAMMAR}") from error
    return noise


def _with_part(noise: Noise, part: str) -> Noise:
    if found := _SPREAD.fullmatch(part):
        return replace(noise, **{found["what"]: _checked(part, float(found["deviation"]), 0.0, _MOST_DEVIATION)})
    if found := _SPIKES.fullmatch(part):
        rate = _checked(part, float(found["rate"]), 0.0, 1.0)
        return replace(noise, spike_rate=rate, spike_factor=_checked(part, float(found["factor"]), 1.0, _MOST_FACTOR))
    if found := _NODE.fullmatch(part):
        length = float(found["length"] or _USUAL_LENGTH)
        if not length >= 1.0:
            raise InvalidSimulation(f"noise {part!r}: a node must last for 1 recurrence or more, got {length:g}")
        deviation = _checked(part, float(found["deviation"]), 0.0, _MOST_DEVIATION)
        return replace(noise, node=deviation, node_length=length)
    raise InvalidSimulation(f"noise {part!r} is not understood; examples are {GRAMMAR}")


def _checked(part: str, number: float, least: float, most: float) -> float:
    if not least <= number <= most:
        raise InvalidSimulation(f"noise {part!r} must be between {least:g} and {most:g}, got {number:g}")
    return number
