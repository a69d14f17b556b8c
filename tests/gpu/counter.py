"""How often the GPU brings its energy counter up to date, in what steps, and what that does to short windows.

    python -m tests.gpu.counter --out counter.json

Reads the counter as fast as it can under a steady load and beside an idle GPU, then measures windows of several lengths
under that load, and bursts of work on a GPU that is idle before and after. Takes about a minute; sets nothing.
"""

# ruff: noqa: T201, TID251  # it prints, and measures time

import argparse
import importlib
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bso_client import EnergyMonitor
from bso_client.energy.nvml import Gpu, Nvml
from tests.gpu.load import Products

WINDOWS_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
BURSTS_S = (0.05, 0.2, 1.0)
IDLE_S = 1.2


def spread(values: Sequence[float]) -> dict[str, float]:
    """A few numbers that describe many."""
    cuts = statistics.quantiles(values, n=20) if len(values) > 1 else [values[0]] * 19
    return {"median": statistics.median(values), "p5": cuts[0], "p95": cuts[-1], "max": max(values), "n": len(values)}


def updates(gpu: Gpu, products: Products | None, *, seconds: float) -> dict[str, Any]:
    """The intervals [ms] and steps [mJ] of the counter, and how long one reading takes [ms]."""
    changes: list[tuple[float, float]] = []
    readings_s: list[float] = []
    began_s = time.monotonic()
    pending: list[Any] = []
    while (now_s := time.monotonic()) < began_s + seconds:
        if products is not None:
            keep_busy(products, pending)
        asked_s = time.monotonic()
        energy_j = gpu.energy_j()
        readings_s.append(time.monotonic() - asked_s)
        if not changes or energy_j != changes[-1][1]:
            changes.append((now_s, energy_j))
    whole = changes[1:]  # the first is no update
    intervals_ms = [1000 * (after - before) for (before, _), (after, _) in itertools.pairwise(whole)]
    steps_mj = [1000 * (after - before) for (_, before), (_, after) in itertools.pairwise(whole)]
    return {
        "power_w": (whole[-1][1] - whole[0][1]) / (whole[-1][0] - whole[0][0]),
        "interval_ms": spread(intervals_ms),
        "step_mj": spread(steps_mj),
        "reading_ms": spread([1000 * each for each in readings_s]),
    }


def keep_busy(products: Products, pending: list[Any]) -> None:
    """Let the GPU have at least two rounds of work ahead, without waiting for it."""
    torch: Any = importlib.import_module("torch")
    pending[:] = [event for event in pending if not event.query()]
    while len(pending) < 2:
        products.launch(5)
        event = torch.cuda.Event()
        event.record()
        pending.append(event)


def windows(products: Products, *, length_s: float, count: int) -> dict[str, Any]:
    """By how much [%] the energies of short windows are off the mean power of them all, under a steady load."""
    pending: list[Any] = []
    powers_w = []
    with EnergyMonitor() as monitor:
        monitor.begin_window("all")
        for _ in range(count):
            monitor.begin_window("short", sync_execution=False)
            ends_s = time.monotonic() + length_s
            while time.monotonic() < ends_s:
                keep_busy(products, pending)
            short = monitor.end_window("short", sync_execution=False)
            powers_w.append(short.total_energy / short.time)
        everything = monitor.end_window("all")
    mean_w = everything.total_energy / everything.time
    return {"mean_w": mean_w, "off_percent": spread([abs(100 * (power_w / mean_w - 1)) for power_w in powers_w])}


def bursts(products: Products, *, length_s: float, count: int) -> dict[str, Any]:
    """What part of a burst's energy its window has, when the GPU is idle before and after.

    The whole is what was counted until IDLE_S after it, without what the GPU draws when it is idle.
    """
    torch: Any = importlib.import_module("torch")
    parts, wholes_j = [], []
    with EnergyMonitor() as monitor:
        for _ in range(count):
            time.sleep(IDLE_S)
            monitor.begin_window("idle")
            time.sleep(IDLE_S / 2)
            idle = monitor.end_window("idle")
            monitor.begin_window("whole")
            monitor.begin_window("burst")
            ends_s, pending = time.monotonic() + length_s, list[Any]()
            while time.monotonic() < ends_s:
                keep_busy(products, pending)
            burst = monitor.end_window("burst")
            time.sleep(IDLE_S)
            whole = monitor.end_window("whole")
            idle_w = idle.total_energy / idle.time
            whole_j = whole.total_energy - idle_w * (whole.time - burst.time)
            parts.append(100 * burst.total_energy / whole_j)
            wholes_j.append(whole_j)
    torch.cuda.synchronize()
    return {"percent_in_the_window": spread(parts), "whole_j": spread(wholes_j)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch: Any = importlib.import_module("torch")
    products = Products(torch)
    with Nvml() as nvml:
        gpu = nvml.visible_gpus(None)[0]
        report: dict[str, Any] = {"gpu": gpu.name, "idle": updates(gpu, None, seconds=4)}
        products.run(50)
        report["busy"] = updates(gpu, products, seconds=4)
        report["windows"] = {
            f"{1000 * length_s:g} ms": windows(products, length_s=length_s, count=round(min(60, 5 / length_s)))
            for length_s in WINDOWS_S
        }
        torch.cuda.synchronize()
        report["bursts"] = {
            f"{1000 * length_s:g} ms": bursts(products, length_s=length_s, count=3) for length_s in BURSTS_S
        }
    print(json.dumps(report, indent=1))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
