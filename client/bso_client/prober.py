"""Probing epoch costs: a few training steps with other batch sizes, between epochs, within a share of the time.

A probe compares steps with a batch size to steps with the training's own, whose epochs have shown what they cost. So
whatever an epoch takes besides its steps, an evaluation for example, is in the estimate, in proportion. The training's
own batch size is among the probes: it says on which level the others are.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from bso.domain.commands import EpochCostProbe
from bso_client.energy.monitor import Monitor
from bso_client.failures import described, is_out_of_memory
from bso_client.meter import total_energy_j
from bso_client.training.state import Consumption, Probed

logger = logging.getLogger("bso")

WARM_UP, FEWEST, MOST = 2, 3, 20
"""Steps: those before the measured ones, in which caches fill and kernels are chosen, and how many are measured."""
MOST_TRIES = 2
MOST_STEPS = 2 + MOST_TRIES * (WARM_UP + MOST)
"""With one batch size: its steps may differ too much the first time, and two show how long the training's own take."""
_ONE_IN = 5
_LONG_S = 0.5  # a GPU's counter of energy moves ten times a second
_LEAST_DEVIATION = 0.02  # of ln cost: no clock and no meter is better
_MOST_DEVIATION = 0.3  # a probe that may be wrong by more says nothing

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """Steps with one batch size: what a sample takes, in s and J (None: not measured), and the deviation of ln time."""

    time_s: float
    energy_j: float | None
    deviation: float


class Prober:
    """Probes for one training. What the user's step raises ends the probing, never the training.

    ``share_of`` a batch size: the samples that this rank makes a step with.
    """

    def __init__(
        self,
        monitor: Monitor,
        *,
        share_of: Callable[[int], int] = int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._monitor = monitor
        self._share_of = share_of
        self._clock = clock
        self._own: _Steps | None = None
        self._step_s: float | None = None  # about how long a step of the training takes
        self._tries: Counter[int] = Counter()
        self._none_fits_from = math.inf
        self._is_broken = False

    def probe(
        self, step: Callable[[int], object], wanted: Sequence[int], *, own: int, epoch: Consumption, allowance_s: float
    ) -> Probed:
        """Probe as many of the wanted batch sizes as ``allowance_s`` [s] is enough for.

        ``own`` is the training's batch size, and ``epoch`` what an epoch with it takes on the mean. ``step`` makes one
        step with so many samples; if it is a context manager, it is entered before the first step. Of those for which
        memory is not enough, all larger ones are left.
        """
        due = [size for size in (*((own,) if self._own is None else ()), *wanted) if self._tries[size] < MOST_TRIES]
        if self._is_broken or not any(self._is_enough(size, allowance_s, own=own) for size in due):
            return Probed(is_broken=self._is_broken)
        key, began_s = f"bso-probing-{next(_numbers)}", self._clock()
        is_measured = self._begin(key)
        found: dict[int, _Steps] = {}
        excluded: list[int] = []
        try:
            with _entered(step):
                for size in due:
                    if self._clock() - began_s > allowance_s:  # what a step needs to be kept took as long
                        break
                    steps = self._found(step, size, own=own, ends_s=began_s + allowance_s)
                    if steps is not None:
                        found[size] = steps
                    if size >= self._none_fits_from:
                        excluded.append(size)
                    self._own = self._own or found.get(own)
                    if self._own is None:
                        break
        except Exception as error:  # noqa: BLE001  # it is the user's, and a training must not be lost to a probe
            self._break_off(error)
        if any(size > own for size in (*found, *excluded)):
            _free_memory()
        energy_j = self._end(key) if is_measured else None
        probes = _probes(found, self._own, own_size=own, epoch=epoch)
        return Probed(
            probes=probes,
            out_of_memory=tuple(excluded),
            time_s=self._clock() - began_s,
            energy_j=energy_j,
            is_broken=self._is_broken,
        )

    def _found(self, step: Callable[[int], object], size: int, *, own: int, ends_s: float) -> _Steps | None:
        """Steps with a batch size; None: there is no time for them, they say nothing, or they do not fit."""
        if size >= self._none_fits_from:
            return None
        try:
            return self._steps(step, size, own=own, ends_s=ends_s)
        except Exception as error:
            if size <= own or not is_out_of_memory(error):
                raise
            error.__traceback__ = None  # its frames hold tensors
        _free_memory()
        self._none_fits_from = size
        words = "batch size %d does not fit in memory: it is not tried"
        logger.info(words, size, extra={"action": "probe_out_of_memory", "batch_size": size})
        return None

    def _steps(self, step: Callable[[int], object], size: int, *, own: int, ends_s: float) -> _Steps | None:
        """As many steps as there is time for; None: there is too little, or they differ too much."""
        if self._step_s is None:
            self._timed(step, size)  # the first one of all starts what loads the samples
            self._step_s = self._timed(step, size)
        if not self._is_enough(size, ends_s - self._clock(), own=own):
            return None
        self._tries[size] += 1
        each_s = math.inf
        for number in range(WARM_UP):
            each_s = min(each_s, self._timed(step, size))
            if each_s * (WARM_UP - 1 - number + FEWEST) > ends_s - self._clock():
                return None  # a step takes longer than in proportion to its samples
        left = int((ends_s - self._clock()) / each_s) if each_s > 0.0 else MOST
        count = max(FEWEST, min(MOST, left))
        key, began_s = f"bso-probing-{next(_numbers)}", self._clock()
        is_measured = self._begin(key)
        times_s = sorted(self._timed(step, size) for _ in range(count))
        energy_j = self._end(key) if is_measured else None
        is_long = self._clock() - began_s >= _LONG_S
        usual_s = times_s[: max(FEWEST, count - count // _ONE_IN)]  # the slowest are what the machine did meanwhile
        mean_s = sum(usual_s) / len(usual_s)
        deviation = _deviation(usual_s, mean_s) / mean_s / math.sqrt(len(usual_s)) if mean_s > 0.0 else math.inf
        if size == own:
            self._step_s = mean_s
        if not deviation <= _MOST_DEVIATION:
            return None
        self._tries[size] = MOST_TRIES
        return _Steps(
            time_s=mean_s / size,
            energy_j=energy_j / (count * size) if energy_j is not None and is_long else None,
            deviation=max(deviation, _LEAST_DEVIATION),
        )

    def _is_enough(self, size: int, left_s: float, *, own: int) -> bool:
        """Whether so much time [s] should be enough for steps with a batch size.

        A larger step takes at most proportionally longer, as a rule, and a smaller one at most as long.
        """
        if self._step_s is None:
            return left_s > 0.0
        return self._step_s * max(1.0, size / own) * (WARM_UP + FEWEST) <= left_s

    def _timed(self, step: Callable[[int], object], size: int) -> float:
        began_s = self._clock()
        step(self._share_of(size))
        return self._clock() - began_s

    def _break_off(self, error: Exception) -> None:
        self._is_broken = True
        words = "epoch costs are not probed any more in this training (BSO_PROBING=off: never): %s"
        logger.warning(words, described(error), extra={"action": "probe_failed"})

    def _begin(self, key: str) -> bool:
        try:
            self._monitor.begin_window(key)
        except Exception:  # noqa: BLE001  # somebody else's monitor must not end a training
            return False
        return True

    def _end(self, key: str) -> float | None:
        try:
            energy_j = total_energy_j(self._monitor.end_window(key))
        except Exception:  # noqa: BLE001  # as above
            return None
        return energy_j if math.isfinite(energy_j) and energy_j >= 0.0 else None


def _deviation(values: Sequence[float], mean: float) -> float:
    """The sample standard deviation."""
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _probes(
    found: dict[int, _Steps], own: _Steps | None, *, own_size: int, epoch: Consumption
) -> tuple[EpochCostProbe, ...]:
    """What epochs would take; the training's own batch size is always among them, as the level of the others."""
    if own is None or not found or not epoch.time_s > 0.0 or epoch.energy_j == 0.0:
        return ()
    return tuple(_probe(size, steps, own, epoch) for size, steps in {own_size: own, **found}.items())


def _probe(size: int, steps: _Steps, own: _Steps, epoch: Consumption) -> EpochCostProbe:
    """What an epoch would take. Where energy was not measured over long enough, power is taken to be the training's."""
    slower = steps.time_s / own.time_s
    more = steps.energy_j / own.energy_j if steps.energy_j and own.energy_j else slower
    return EpochCostProbe(
        batch_size=size,
        time_s=epoch.time_s * slower,
        energy_j=None if epoch.energy_j is None else epoch.energy_j * more,
        variance=steps.deviation**2 + (0.0 if steps is own else own.deviation**2),
    )


def _entered(step: Any) -> AbstractContextManager[Any]:
    """The step, if it has to be entered."""
    return cast(AbstractContextManager[Any], step) if hasattr(step, "__enter__") else nullcontext()


def _free_memory() -> None:
    """Give back what larger steps, and exceptions, have held."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
