"""One training whose power limit is tuned: where its profile is kept, and how its limits are measured."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from bso.domain.commands import PowerMeasurement
from bso.domain.power_sweep import (
    Action,
    CloseWindow,
    OpenWindow,
    Profiling,
    SetLimit,
    Step,
    begin_step,
    end_epoch,
)
from bso.domain.replies import NearestPowerProfile
from bso.private_files import FILE_MODE, make_folders
from bso_client.atomic import replace_file
from bso_client.energy.monitor import Monitor
from bso_client.power.agreement import Window
from bso_client.power.limits import LimitNotSet
from bso_client.power.selection import DEFAULT_ETA_KNOB

logger = logging.getLogger("bso")

_FORMAT = 1
_SHORT_WINDOW_S = 0.5
_LOCK_TIMEOUT_S = 5.0  # others hold it for the time of one small write

_numbers = itertools.count(1)


class TrialTraining:
    """A trial of a job: its profile is kept by the optimizer, by job, batch size and hardware kind."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial
        self.eta_knob: float = trial.spec.eta_knob
        self.max_power_w: float | None = trial.hardware.max_power_w  # of all GPUs together
        self.samples_per_step: float | None = trial.batch_size  # of all ranks together

    def profile(self) -> tuple[PowerMeasurement, ...]:
        """What the optimizer knows of this batch size on this hardware kind."""
        return tuple(self.trial.power_profile)

    def nearest_profile(self) -> NearestPowerProfile | None:
        """What the optimizer knows of the nearest batch size instead."""
        nearest: NearestPowerProfile | None = self.trial.nearest_power_profile
        return nearest

    @property
    def may_be_profiled(self) -> bool:
        """Whether its limits may be measured now. One that trains under a good limit waits for its first evaluation.

        It may be stopped then, and with it all that was to be gained by its own limits.
        """
        return self.trial.nearest_power_profile is None or self.trial.metric is not None

    def keep(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Report it; delivered later if the optimizer is away."""
        self.trial.report_power_profile(measurements)

    def mark_profiling(self) -> None:
        """Mark the next report."""
        self.trial.mark_profiling()


class LoneTraining:
    """A training without a job: its profile is kept in a file, under a key, or not at all."""

    eta_knob = DEFAULT_ETA_KNOB
    max_power_w: float | None = None
    samples_per_step: float | None = None
    may_be_profiled = True

    def __init__(self, file: ProfileFile | None, key: str) -> None:
        self._file, self._key = file, key

    def profile(self) -> tuple[PowerMeasurement, ...]:
        """What the file holds."""
        return () if self._file is None else self._file.read(self._key)

    def nearest_profile(self) -> None:
        """The file knows no other batch sizes of this training."""

    def keep(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Write it into the file."""
        if self._file is not None:
            self._file.write(self._key, measurements)

    def mark_profiling(self) -> None:
        """Nobody counts the cost of this training."""


TunedTraining = TrialTraining | LoneTraining
"""One training whose power limit is tuned; numbers that are None are those that only the user or the GPUs know."""


class ProfileFile:
    """Profiles by key. What cannot be read is a warning, and profiled anew; what cannot be written, a warning too.

    Written at once or not at all, under a lock beside it; each profile carries a checksum of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, key: str) -> tuple[PowerMeasurement, ...]:
        """The profile under a key; empty if there is none, or none that can be read."""
        stored = self._read_all().get(key)
        if stored is None:
            return ()
        try:
            return _profile(stored)
        except (KeyError, TypeError, ValueError) as error:
            self._warn(f"the power profile in {self.path} is damaged ({error}): it is measured anew")
            return ()

    def write(self, key: str, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep a profile under a key, beside the others; never raises."""
        from filelock import FileLock

        content = [asdict(measured) for measured in measurements]
        lock = FileLock(f"{self.path}.lock", mode=FILE_MODE, timeout=_LOCK_TIMEOUT_S, fallback_to_soft=False)
        try:
            make_folders(self.path.parent)
            with lock:
                profiles = self._read_all() | {key: {"measurements": content, "checksum": _checksum(content)}}
                replace_file(self.path, json.dumps({"format": _FORMAT, "profiles": profiles}, indent=1))
        except OSError as error:
            self._warn(f"the power profile cannot be kept in {self.path}: {error}")

    def _read_all(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._warn(f"power profiles cannot be read from {self.path} ({error}): they are measured anew")
            return {}
        if not isinstance(data, dict) or data.get("format") != _FORMAT or not isinstance(data.get("profiles"), dict):
            self._warn(f"{self.path} holds no power profiles in format {_FORMAT}: they are measured anew")
            return {}
        return dict(data["profiles"])

    def _warn(self, words: str) -> None:
        logger.warning("%s", words, extra={"action": "profile_file_failed"})


class Limit(Protocol):
    """Sets one power limit [W] for each GPU of this process; raises LimitNotSet."""

    def set(self, limit_w: float) -> None:
        """Set it."""
        ...


class Tuner:
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

    def warn_of_short_windows(self) -> None:
        """Say if meters may have been too slow for the steps: their values are new some ten times a second."""
        shortest_s = min((window.time_s for window in self.windows if window.is_known), default=math.inf)
        if shortest_s < _SHORT_WINDOW_S:
            logger.warning(
                "power limits were measured for %.2g s each, %d steps: meters are exact over a second or more; "
                "raise profile_steps (an epoch's steps are the limit)",
                shortest_s,
                self.state.plan.profile_steps,
                extra={"action": "power_windows_short"},
            )

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


def _profile(stored: Any) -> tuple[PowerMeasurement, ...]:
    content = stored["measurements"]
    if stored["checksum"] != _checksum(content):
        raise ValueError("its checksum does not fit")
    profile = tuple(PowerMeasurement(**{name: float(value) for name, value in each.items()}) for each in content)
    numbers = [number for each in profile for number in asdict(each).values()]
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError("expected positive numbers")
    return profile


def _checksum(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()
