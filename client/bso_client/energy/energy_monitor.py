"""Measures the energy of the GPUs of this process, of its processors and their memory, side by side."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bso.domain.hardware import EnergyMethod
from bso.domain.quantities import watts
from bso_client.energy.counters import Device, DeviceKind, EnergyCounter, Reading, energy_of_window
from bso_client.energy.meters import ENERGY_ASSUMED, EnergySetting, MeteringSettings, open_meters
from bso_client.energy.monitor import (
    DEFAULT_POWER_W,
    ConstantPowerMonitor,
    Measurement,
    MeterFailed,
    Monitor,
    NoMeter,
)
from bso_client.energy.nvml import Gpu
from bso_client.energy.rapl import Zone
from bso_client.errors import NotInThisProcess, WrongOrder
from bso_client.once import warn_once

logger = logging.getLogger("bso")


_BRIDGED_S = 0.05
"""A pause of so long at most is bridged: half of the 100 ms after which an H200 brings its counter up to date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    at_s: float
    readings: Mapping[Device, Reading | None]


@dataclass(slots=True, kw_only=True)
class _Window:
    """A window, and what was measured in it before its last pause.

    Its open part begins at ``begun``. Of that ``counted_s`` are no pause, up to ``paused_at_s``; it goes on since
    ``resumed_at_s``. Earlier parts are in ``kept``.
    """

    begun: _Moment
    resumed_at_s: float
    paused_at_s: float | None = None
    counted_s: float = 0.0
    kept_s: float = 0.0
    kept: dict[Device, float]
    energies: dict[Device, float]


class EnergyMonitor:
    """Measures time [s] and energy [J] between begin_window(key) and end_window(key); windows may nest and overlap.

    It measures the GPUs of this process: those that CUDA_VISIBLE_DEVICES shows, and under torchrun the rank's own one
    of them; ``gpu_indices`` chooses others, counted as the training counts them. Processor packages and their memory
    are measured beside them (``cpu_indices``: by package, [] for none); they are the total where there is no GPU, or
    ``gpu_indices`` is [].

    Time and energy are those between the same two instants of ``clock``.

    A meter that fails later makes its part of the open windows NaN, with one warning; nothing is raised. Threads may
    share a monitor, and several may be open at once. A forked copy measures nothing: it raises NotInThisProcess.

    Raises NoMeter where nothing is readable, or a GPU that is measured has no energy counter, as a slice of one (MIG):
    the message names what was looked for. Raises InvalidSetting for an index that is not there.
    """

    def __init__(
        self,
        gpu_indices: Collection[int] | None = None,
        cpu_indices: Collection[int] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        rapl_root: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._pid = os.getpid()
        self._windows: dict[str, _Window] = {}
        self._complained: set[Device] = set()
        self._meters = open_meters(
            gpu_indices,
            cpu_indices,
            environ=os.environ if environ is None else environ,
            rapl_root=rapl_root,
            clock=clock,
        )
        self._finalizer = weakref.finalize(self, _release, self._meters.resources, self._pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def method(self) -> EnergyMethod:
        """How the energy that counts is obtained."""
        return self._meters.method

    @property
    def gpu_indices(self) -> list[int]:
        """The GPUs that are measured, as the training counts them."""
        return list(self._meters.gpus)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are measured."""
        return tuple(self._meters.gpus.values())

    @property
    def is_counted_elsewhere(self) -> bool:
        """Whether this process trains on GPUs that other ranks of this machine count: its own total is 0 J."""
        return self._meters.is_counted_elsewhere

    @property
    def zones(self) -> tuple[Zone, ...]:
        """The processors and memories whose energy counts, or stands beside that of the GPUs."""
        return self._meters.zones

    def begin_window(self, key: str, *, sync_execution: bool = True, restart: bool = False) -> None:
        """Begin to measure under this key. Raises WrongOrder if a window of this key is open.

        ``restart``: forget that one instead. ``sync_execution=False``: do not wait for the GPU.
        """
        self._check_process()
        if key in self._windows and not restart:
            raise WrongOrder(f"a window {key!r} is open already: end it first, or choose another key")
        begun = self._now(max, waits=sync_execution)
        nothing = dict.fromkeys(begun.readings, 0.0)
        self._windows[key] = _Window(begun=begun, resumed_at_s=begun.at_s, kept=nothing, energies=nothing)

    def end_window(self, key: str, *, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """End the window of this key, and return its energy (``cancel``: zeros). Raises WrongOrder if none is open.

        ``sync_execution=False``: do not wait for the GPU.
        """
        window = self._open(key)
        del self._windows[key]
        if cancel:
            return self._measurement(0.0, dict.fromkeys(window.begun.readings, 0.0))
        return self._measured(window, waits=sync_execution)

    def pause_window(self, key: str, *, sync_execution: bool = True) -> Measurement:
        """What was measured under this key so far, without earlier pauses. Raises WrongOrder if no window is open.

        What comes until ``resume_window`` is left out.
        """
        return self._measured(self._open(key), waits=sync_execution)

    def resume_window(self, key: str, *, is_bridged: bool = True, sync_execution: bool = True) -> None:
        """Go on to measure under this key after a pause. Raises WrongOrder if no window is open, or it is not paused.

        A counter may be brought up to date ten times a second only, and what it grows by in a short pause belongs to
        the time before it. So a pause of 0.05 s or less is bridged, where ``is_bridged``: it is taken to draw the mean
        power, and its energy is left out in proportion to its length. Else the counters are read again.
        """
        window = self._open(key)
        if window.paused_at_s is None:
            raise WrongOrder(f"the window {key!r} is not paused: pause_window({key!r}) comes first")
        now_s = self._clock()
        if not is_bridged or now_s - window.paused_at_s > _BRIDGED_S:
            window.kept_s, window.kept = window.kept_s + window.counted_s, window.energies
            window.counted_s = 0.0
            window.begun = self._now(max, waits=sync_execution)
            now_s = window.begun.at_s
        window.resumed_at_s, window.paused_at_s = now_s, None

    def _open(self, key: str) -> _Window:
        self._check_process()
        window = self._windows.get(key)
        if window is None:
            raise WrongOrder(f"no window {key!r} is open: begin_window({key!r}) comes first")
        return window

    def _measured(self, window: _Window, *, waits: bool) -> Measurement:
        """Pause a window, if it is not paused, and return what was measured in it."""
        if window.paused_at_s is None:
            end = self._now(min, waits=waits)
            window.counted_s += end.at_s - window.resumed_at_s
            window.energies = {device: self._energy(device, window, end) for device in window.begun.readings}
            window.paused_at_s = end.at_s
        return self._measurement(window.kept_s + window.counted_s, window.energies)

    def reset_windows(self) -> None:
        """Forget all open windows. Raises NotInThisProcess in a forked copy."""
        self._check_process()
        self._windows.clear()

    def close(self) -> None:
        """Let go of the meters. What is measured afterwards is NaN."""
        self._finalizer()

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise NotInThisProcess("this EnergyMonitor belongs to the process that made it: make one in this process")

    def _now(self, choose: Callable[[Sequence[float]], float], *, waits: bool) -> _Moment:
        """One end of a window, at one of the instants at which the counters were read: the one that ``choose`` takes.

        Counters are read in turn, so a window begins at the last reading, and ends at the first one.
        """
        if waits:
            with contextlib.suppress(Exception):  # a failed GPU says so to the training itself
                synchronize(self.gpu_indices)
        readings = {device: self._read(device, counter) for device, counter in self._meters.counters.items()}
        instants_s = [reading.at_s for reading in readings.values() if reading is not None]
        at_s = choose(instants_s) if instants_s else self._clock()
        return _Moment(at_s=at_s, readings=readings)

    def _read(self, device: Device, counter: EnergyCounter) -> Reading | None:
        try:
            return counter.read()
        except MeterFailed as error:
            self._complain(device, str(error))
            return None

    def _energy(self, device: Device, window: _Window, end: _Moment) -> float:
        """The energy of a window up to a moment: never less than it was at its last pause."""
        begin, length_s = window.begun, end.at_s - window.begun.at_s
        energy_j = energy_of_window(begin.readings[device], end.readings[device], window_s=length_s)
        if math.isnan(energy_j):
            self._complain(device, "its counter went backwards, or could not be read for a while")
            return math.nan
        share = window.counted_s / length_s if window.counted_s < length_s else 1.0
        counted_j, before_j = window.kept[device] + energy_j * share, window.energies[device]
        return counted_j if math.isnan(before_j) else max(counted_j, before_j)

    def _complain(self, device: Device, why: str) -> None:
        if device not in self._complained:
            self._complained.add(device)
            extra = {"action": "meter_failed", "device": str(device)}
            logger.warning("the energy of %s is not known for the windows open now: %s", device, why, extra=extra)

    def _measurement(self, time_s: float, energies: Mapping[Device, float]) -> Measurement:
        by_kind: dict[DeviceKind, dict[int, float]] = {kind: {} for kind in DeviceKind}
        for device, energy_j in energies.items():
            by_kind[device.kind][device.index] = energy_j
        is_counted = bool(self.zones)
        return Measurement(
            time=time_s,
            gpu_energy={index: by_kind[DeviceKind.GPU][index] for index in self._meters.gpus},
            cpu_energy=by_kind[DeviceKind.CPU] if is_counted else None,
            dram_energy=by_kind[DeviceKind.DRAM] or None,
            method=self.method,
        )


def default_monitor(settings: MeteringSettings, *, constant_power_w: float | None) -> EnergyMonitor | None:
    """A monitor of this process' devices; None where energy is assumed, which is warned about once."""
    if settings.energy is EnergySetting.ASSUMED:
        logger.info("energy is assumed, as BSO_ENERGY says", extra={"action": ENERGY_ASSUMED})
        return None
    try:
        return EnergyMonitor(environ=settings.devices)
    except NoMeter as error:
        logger.info("%s", error, extra={"action": "no_meter"})
        if not settings.is_notice_given:
            warn_once(_assumption(constant_power_w), action=ENERGY_ASSUMED)
        return None


def assumed_monitor(constant_power_w: float | None) -> Monitor:
    """What stands in for a meter."""
    return ConstantPowerMonitor(constant_power_w or DEFAULT_POWER_W)


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


def _assumption(constant_power_w: float | None) -> str:
    return (
        f"energy is assumed to be {watts(constant_power_w or DEFAULT_POWER_W)} times time: "
        "`bso doctor` says why, and what to do"
    )


def _release(resources: contextlib.ExitStack, pid: int) -> None:
    if pid == os.getpid():  # a forked copy would take them from the process that they belong to
        resources.close()


def _is_in_use(torch: Any, index: int) -> bool:
    has_context = getattr(getattr(torch, "_C", None), "_cuda_hasPrimaryContext", None)
    return bool(has_context(index)) if has_context is not None else bool(torch.cuda.current_device() == index)
