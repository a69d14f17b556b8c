"""Pictures of rows: rates and latencies by load, CPU time by process, what grows and what does not."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.rows import Row, median

PROCESSES = ("worker", "broker", "database", "client")
_AT = 64


def draw(rows: Sequence[Row], steps: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, str]:
    """Draw what there are rows for; the names of the files, by the title of the section that they belong to."""
    drawn: dict[str, str] = {}
    beside = [row for row in rows if not row["case"]]
    if beside:
        _beside(beside, folder / "beside.png")
        drawn["Beside Zeus' server"] = "beside.png"
    remembered = [row for row in rows if row["case"] == "memory"]
    if remembered:
        _memory(remembered, folder / "memory.png")
        drawn["Memory of a worker"] = "memory.png"
    _steps(steps, folder / "steps.png")
    drawn["What each step brought"] = "steps.png"
    return drawn


def _beside(rows: Sequence[Row], path: Path) -> None:
    picture = _picture(12, 4)
    rate, latency, cpu = picture.subplots(1, 3)
    named = {(row["path"], row["workers"]): None for row in rows}
    for number, (name, workers) in enumerate(named):
        some = [row for row in rows if (row["path"], row["workers"]) == (name, workers)]
        loads = [row["in_flight"] for row in some]
        colour = f"C{number}"
        rate.plot(loads, [median(row["per_second"]) for row in some], "o-", label=_label(name, workers), color=colour)
        latency.plot(loads, [median(row["p50_ms"]) for row in some], "o-", label=_label(name, workers), color=colour)
        latency.plot(loads, [median(row["p99_ms"]) for row in some], "--", color=colour)
    for axes, words in ((rate, "decisions per second"), (latency, "p50, and p99 dashed [ms]")):
        axes.set(xscale="log", yscale="log", xlabel="in flight", ylabel=words)
    rate.legend(frameon=False, fontsize=8)
    at = [row for row in rows if row["in_flight"] == _AT]
    labels = [_label(row["path"], row["workers"]) for row in at]
    _stacked(cpu, labels, [{name: one["median"] for name, one in row["cpu_us"].items()} for row in at])
    cpu.set_title(f"{_AT} in flight", loc="left", fontsize=10)
    _save(picture, path)


def _label(path: str, workers: int) -> str:
    return f"{path}, {workers} workers" if workers > 1 else path


def _memory(rows: Sequence[Row], path: Path) -> None:
    picture = _picture(6, 3)
    axes = picture.subplots()
    axes.plot([row["messages"] for row in rows], [median(row["rss_mb"]) for row in rows], "o-")
    axes.set(xlabel="messages", ylabel="a worker's RAM [MB]", ylim=(0, None))
    _save(picture, path)


def _steps(steps: Sequence[Mapping[str, Any]], path: Path) -> None:
    picture = _picture(8, 3)
    axes = picture.subplots()
    _stacked(axes, [one["step"] for one in steps], [one["cpu_us"] for one in steps])
    _save(picture, path)


def _stacked(axes: Any, labels: Sequence[str], cpu_us: Sequence[Mapping[str, float]]) -> None:
    """Bars of the CPU time of each process."""
    reached = [0.0] * len(labels)
    places = range(len(labels))
    for name in PROCESSES:
        widths = [one.get(name, 0.0) for one in cpu_us]
        axes.barh(places, widths, left=reached, label=name)
        reached = [before + width for before, width in zip(reached, widths, strict=True)]
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.set_xlabel("CPU per decision [us]")
    axes.legend(frameon=False, fontsize=8)


def _picture(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(picture)
    return picture


def _save(picture: Any, path: Path) -> None:
    for axes in picture.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path, dpi=110)
