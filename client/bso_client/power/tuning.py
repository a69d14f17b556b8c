"""One training's power limit: carries out what the rules of profiling say, and keeps what was measured."""

from __future__ import annotations

import itertools
import logging
from typing import Any, Protocol

from bso_client.energy.monitor import Monitor
from bso_client.power.guarded_limit import LimitNotSet
from bso_client.power.profiling import (
    Action,
    CloseWindow,
    OpenWindow,
    Profiling,
    SetLimit,
    Step,
    begin_step,
    end_epoch,
)
from bso_client.power.reduction import Window

logger = logging.getLogger("bso")

_numbers = itertools.count(1)


class Limit(Protocol):
    """Sets one power limit [W] for each GPU of this process; raises LimitNotSet."""

    def set(self, limit_w: float) -> None:
        """Set it."""
        ...


class Tuning:
    """Profiles the limits of one training, step by step. Nothing that a GPU or a meter does wrong ends it.

    A limit that cannot be set, or a window in which the meter failed, gives no measurement; the steps go on as if it
    did, so that ranks stay in step.
    """

    def __init__(self, state: Profiling, *, limit: Limit, monitor: Monitor, samples_per_step: float) -> None:
        self.state = state
        self.windows: list[Window] = []
        self._limit = limit
        self._monitor: Any = monitor
        self._samples_per_step = samples_per_step
        self._key = f"bso-power-limit-{next(_numbers)}"
        self._is_limit_set = False
        self._is_window_open = False

    def begin_step(self) -> None:
        """A training step begins."""
        self._take(begin_step(self.state))

    def end_epoch(self, *, is_step_complete: bool) -> None:
        """An epoch ends, or the training does something else than steps."""
        self._take(end_epoch(self.state, is_step_complete=is_step_complete))

    def resume(self, state: Profiling) -> None:
        """Go on where all ranks can; windows that not all of them have are measured again."""
        self.state = state
        del self.windows[state.position :]

    def set(self, limit_w: float) -> bool:
        """Set a limit [W]; returns whether that went well."""
        try:
            self._limit.set(limit_w)
        except LimitNotSet as error:
            extra = {"action": "power_limit_refused", "power_limit_w": limit_w}
            logger.warning("the power limit of %g W could not be set: %s", limit_w, error, extra=extra)
            return False
        return True

    def _take(self, step: Step) -> None:
        self.state, todo = step
        for action in todo:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case SetLimit():
                self._is_limit_set = self.set(action.limit_w)
            case OpenWindow():
                self._open()
            case CloseWindow():
                self.windows.append(self._closed(action))
            case _:
                self.drop_window()

    def _open(self) -> None:
        try:
            self._monitor.begin_window(self._key)
        except Exception as error:  # noqa: BLE001  # somebody else's monitor must not end a training
            self._complain(error)
            return
        self._is_window_open = True

    def _closed(self, action: CloseWindow) -> Window:
        samples = action.steps * self._samples_per_step
        if self._is_window_open:
            self._is_window_open = False
            try:
                measured = self._monitor.end_window(self._key)
                time_s, energy_j = float(measured.time), float(measured.total_energy)
            except Exception as error:  # noqa: BLE001  # somebody else's monitor must not end a training
                self._complain(error)
            else:
                is_valid = self._is_limit_set
                return Window(
                    limit_w=action.limit_w, time_s=time_s, energy_j=energy_j, samples=samples, is_valid=is_valid
                )
        return Window(limit_w=action.limit_w, time_s=0.0, energy_j=0.0, samples=samples, is_valid=False)

    def drop_window(self) -> None:
        """End an open window without making anything of it."""
        if not self._is_window_open:
            return
        self._is_window_open = False
        try:
            self._monitor.end_window(self._key, cancel=True)
        except TypeError:  # a monitor that cannot cancel
            self._monitor.end_window(self._key)
        except Exception as error:  # noqa: BLE001  # somebody else's monitor must not end a training
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        extra = {"action": "power_window_failed"}
        logger.warning("the energy monitor failed (%r): this power limit is not measured", error, extra=extra)
