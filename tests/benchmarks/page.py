"""The page of figures: tables and pictures of a build/bench.json.

    python -m tests.benchmarks.page build/bench.json --out build/performance

``make bench`` does that after it has measured. A section without rows is left out. Numbers are medians; the file has
the least and the greatest values.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from tests.benchmarks import pictures
from tests.benchmarks.decisions.markdown import markdown
from tests.benchmarks.rows import Row, median

STEPS = Path("docs/performance/steps.json")
PROCESSES = ("worker", "broker", "database", "client")
_WIDTH = 120
_WAYS = ("client_sent", "client_received", "worker_received", "worker_sent")
WORDS = {
    "Beside Zeus' server": (
        "The same report, on the same RabbitMQ and MariaDB. An epoch after which the training goes on writes nothing "
        "at zeus, and is durable at bso."
    ),
    "Two workers beside one": (
        "Workers that share a queue decide on any job. Where each job stays with one of them, each has a virtual host "
        "of its own, with half of the jobs; the database is the same. The last columns compare with what one worker "
        "takes at as many commands per commit, between the sizes that were measured."
    ),
    "What a training pays": (
        "`on_evaluate` in a training's process, beside a row and a commit in a file of SQLite by the bare driver."
    ),
    "Counted": (
        "Requests to the database and AMQP frames, counted by proxies. A worker's hold what it does beside deciding."
    ),
    "The life of a worker": (
        "Start-up until ready, and its CPU; SIGTERM until exit, under load, while another worker goes on."
    ),
    "Memory of a worker": "More jobs than it keeps in memory; 256 reports in flight.",
}
Columns = Mapping[str, Callable[[Row], str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.page", description="Tables and pictures.")
    parser.add_argument("found", type=Path, nargs="?", default=Path("build/bench.json"), help="(build/bench.json)")
    parser.add_argument("--out", type=Path, default=Path("build/performance"), help="a folder (build/performance)")
    options = parser.parse_args(arguments)
    found = json.loads(options.found.read_text(encoding="utf-8"))
    sys.stdout.write(f"{write(found['machine'], found['rows'], options.out)}\n")
    return 0


def write(machine: Mapping[str, Any], rows: Sequence[Row], folder: Path) -> Path:
    """Write figures.md and its pictures; the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = json.loads(STEPS.read_text(encoding="utf-8"))
    drawn = pictures.draw(rows, steps["steps"], folder)
    path = folder / "figures.md"
    path.write_text(page_of(machine, rows, steps, drawn), encoding="utf-8")
    return path


def page_of(machine: Mapping[str, Any], rows: Sequence[Row], steps: Mapping[str, Any], drawn: Mapping[str, str]) -> str:
    """The page in Markdown. ``drawn`` are pictures, by the title of the section that they end."""
    preface = (
        f"Made by `{machine['command']}`; medians. Two rows may be compared, two runs hardly. A star marks a row that "
        "was disturbed: foreign processes took more than a tenth of the machine, also when it was measured again. "
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}."
    )
    parts = ["# Figures of a decision", fill(preface, _WIDTH)]
    for title, columns, wanted in _sections(rows):
        if wanted:
            table = markdown(list(columns), [[cell(row) for cell in columns.values()] for row in wanted])
            parts += [f"## {title}", *([fill(WORDS[title], _WIDTH)] if title in WORDS else []), table]
            parts += [f"![{title}]({drawn[title]})"] if title in drawn else []
    title = "What each step brought"
    lines = [
        (one["step"], _number(one["per_second"]), _number(one["p50_ms"]), *_cpu_cells(one["cpu_us"]))
        for one in steps["steps"]
    ]
    headings = ("step", "per second", "p50 [ms]", *(f"{name} [us]" for name in PROCESSES), "all [us]")
    parts += [f"## {title}", f"{steps['measured']}.", markdown(headings, lines)]
    parts += [f"![{title}]({drawn[title]})"] if title in drawn else []
    return "\n\n".join(parts) + "\n"


def _cpu_cells(cpu_us: Mapping[str, float]) -> list[str]:
    return [*(_number(cpu_us[name]) if name in cpu_us else "" for name in PROCESSES), _number(sum(cpu_us.values()))]


def _sections(rows: Sequence[Row]) -> list[tuple[str, Columns, list[Row]]]:
    """Title, columns and rows of each table."""
    zeus = {(row["case"], row["in_flight"]): median(row["per_second"]) for row in rows if row["path"] == "zeus"}
    past = {row["path"]: row for row in reversed(rows) if row["case"] == "history"}

    def over_zeus(row: Row) -> str:
        return _ratio(median(row["per_second"]), zeus.get((row["case"], row["in_flight"])))

    def over_shortest(row: Row) -> str:
        return _ratio(_all_us(row), _all_us(past[row["path"]]))

    def wanted(*cases: str) -> list[Row]:
        return [row for row in rows if row["case"] in cases]

    return [
        (
            "Beside Zeus' server",
            {"path": _named, "in flight": _in_flight, "workers": _workers, **_RATES, "over zeus": over_zeus, **_CPU},
            sorted(wanted(""), key=lambda row: int(row["in_flight"])),
        ),
        (
            "Over Zeus' wire",
            {"path": _named, "in flight": _in_flight, **_RATES, "over zeus": over_zeus, **_CPU},
            sorted(wanted("over Zeus' wire"), key=lambda row: int(row["in_flight"])),
        ),
        (
            "Other loads",
            {
                "load": lambda row: f"{row['case']}{_star(row)}",
                "policy": lambda row: str(row["policy"]),
                "jobs": lambda row: str(row["jobs"]),
                "in flight": _in_flight,
                "workers": _workers,
                **_RATES,
                **_CPU,
            },
            [
                row
                for row in rows
                if row["case"] and row["path"] == "bso" and "policy" in row and row not in _pairs(rows)
            ],
        ),
        (
            "Two workers beside one",
            {
                "load": lambda row: f"{row['case']}{_star(row)}",
                "in flight": _in_flight,
                **_RATES,
                **_CPU,
                "one worker at such commits [us]": lambda row: _number(row.get("one_worker_at_equal_commits_us")),
                "over it": lambda row: _ratio(
                    median(row["cpu_us"]["worker"]), row.get("one_worker_at_equal_commits_us")
                ),
            },
            _pairs(rows),
        ),
        (
            "With a long past",
            {
                "path": _named,
                "ended trials": lambda row: _number(row["history"]),
                **_RATES,
                **_CPU,
                "all CPU over the shortest": over_shortest,
            },
            wanted("history"),
        ),
        (
            "What a training pays",
            {"path": _named, "": lambda row: str(row["case"]), **_RATES, **_CPU},
            [row for row in rows if row["path"] in ("embedded", "client", "floor_fsync") and "p50_ms" in row],
        ),
        (
            "Once, and per epoch",
            {
                "": lambda row: str(row["case"]),
                "CPU [ms]": lambda row: _number(median(row.get("cpu_ms"))),
                "time added [ms]": lambda row: _number(median(row.get("added_ms"))),
                "of it the client's own [ms]": lambda row: _number(median(row.get("own_ms"))),
            },
            [row for row in rows if row["path"] == "client" and ("cpu_ms" in row or "added_ms" in row)],
        ),
        (
            "Counted",
            {
                "path": _named,
                "in flight": _in_flight,
                "commands per batch": lambda row: _number(median(row["commands_per_batch"])),
                "requests per batch": lambda row: _number(median(row["sql_round_trips_per_batch"])),
                "requests per decision": lambda row: _number(median(row["sql_round_trips"])),
                **{f"frames, {way.replace('_', ' ')}": _counted(way) for way in _WAYS},
            },
            wanted("counted"),
        ),
        (
            "The life of a worker",
            {
                "": lambda row: str(row["case"]),
                "time [ms]": lambda row: _number(median(row.get("ms") or row.get("cpu_ms"))),
            },
            wanted("start-up", "start-up, CPU", "drain"),
        ),
        (
            "Memory of a worker",
            {"messages": lambda row: _number(row["messages"]), "RAM [MB]": lambda row: _number(median(row["rss_mb"]))},
            wanted("memory"),
        ),
    ]


def _pairs(rows: Sequence[Row]) -> list[Row]:
    cases = {row["case"] for row in rows if "one_worker_at_equal_commits_us" in row} | {"one worker"}
    return [row for row in rows if row["case"] in cases]


def _counted(way: str) -> Callable[[Row], str]:
    return lambda row: _number(median(row.get(way)))


def _named(row: Row) -> str:
    return f"{row['path']}{_star(row)}"


def _in_flight(row: Row) -> str:
    return str(row["in_flight"])


def _workers(row: Row) -> str:
    return str(row["workers"] or "")


def _star(row: Row) -> str:
    return " *" if row.get("foreign") else ""


def _cpu(name: str) -> Callable[[Row], str]:
    return lambda row: _number(median(row["cpu_us"].get(name)))


def _all_us(row: Row) -> float:
    return float(sum(one["median"] for one in row["cpu_us"].values()))


_RATES: Columns = {
    "per second": lambda row: _number(median(row["per_second"])),
    "p50 [ms]": lambda row: _number(median(row["p50_ms"])),
    "p99 [ms]": lambda row: _number(median(row["p99_ms"])),
}
_CPU: Columns = {
    **{f"{name} [us]": _cpu(name) for name in PROCESSES},
    "all [us]": lambda row: _number(_all_us(row)),
    "commands per batch": lambda row: _number(median(row.get("commands_per_batch"))),
    "commands per commit": lambda row: _number(median(row.get("commands_per_commit"))),
}


def _ratio(value: float | None, beside: float | None) -> str:
    return f"{value / beside:.2f} x" if value and beside else ""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2g}" if abs(value) < 10 and value != round(value) else f"{value:,.0f}".replace(",", " ")


if __name__ == "__main__":
    sys.exit(main())
