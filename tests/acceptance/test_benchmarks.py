"""The benchmarks run: what they find is for people to judge."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bso.domain.policies import own_policies
from tests.benchmarks.__main__ import BENCHMARKS


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_rules_are_measured_and_printed() -> None:
    assert "report_epoch; 100 ended" in run("--quick", "--only", "decide")


def test_the_simulator_is_measured_with_every_policy() -> None:
    printed = run("--quick", "--only", "simulator")
    assert all(f"{policy}; 20 recurrences" in printed for policy in own_policies())


SPREAD = {"median", "min", "max"}
MEASURED = {"per_second", "p50_ms", "p99_ms"}
PATHS = {
    ("bso", ""),
    ("zeus", ""),
    ("floor_echo", ""),
    ("floor_transaction", ""),
    ("bso", "one job"),
    ("bso", "a job for each training"),
    ("bso", "policy pruning_thompson"),
    ("bso", "one worker"),
    ("bso", "each job stays with one of two workers"),
    ("bso", "jobs are spread over two workers"),
    ("bso", "quorum queue"),
    ("bso", "classic queue"),
    ("bso", "whole trials"),
    ("bso", "history"),
    ("engine_sqlite", "history"),
    ("embedded", "embedded (SQLite)"),
    ("client", "through broker and worker"),
    ("gateway", "over Zeus' wire"),
    ("gateway_sqlite", "over Zeus' wire"),
    ("zeus", "over Zeus' wire"),
    ("floor_fsync", "a row and a commit in SQLite, bare driver"),
}
OTHERS = {
    ("client", "import json"),
    ("client", "import sqlalchemy"),
    ("client", "import bso_client"),
    ("client", "an epoch, embedded (SQLite)"),
    ("client", "an epoch, through broker and worker"),
    ("engine_mariadb", "counted"),
    ("bso", "counted"),
    ("worker", "start-up"),
    ("worker", "start-up, CPU"),
    ("worker", "drain"),
    ("worker", "memory"),
}
"""Rows that have quantities of their own."""


def spreads_in(row: dict[str, Any]) -> Iterator[dict[str, float]]:
    for found in row.values():
        if isinstance(found, dict):
            yield from [found] if found.keys() == SPREAD else spreads_in(found)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_benchmark_runs_on_its_private_servers(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    found = json.loads(run("--quick", "--repetitions", "1", "--json", "--out", str(out)))
    assert {figure["benchmark"] for figure in found["figures"]} == set(BENCHMARKS) - {"many"}, (
        "which is tested by itself"
    )
    assert (tmp_path / "performance" / "figures.md").is_file()
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert {(row["path"], row["case"]) for row in rows} == PATHS | OTHERS
    for row in rows:
        assert row.keys() >= {"path", "case", "in_flight", "workers"}
        assert list(spreads_in(row))
        assert all(one["min"] <= one["median"] <= one["max"] for one in spreads_in(row))
        if (row["path"], row["case"]) in PATHS:
            assert row.keys() >= MEASURED | {"cpu_us", "foreign_share", "foreign"}
            assert "client" in row["cpu_us"]
        if row["path"] == "bso" and row["case"] != "counted":
            assert row["cpu_us"].keys() == {"client", "worker", "broker", "database"}
            assert row["commands_per_commit"]["min"] > 0, "in batches, or alone where a job is costly"
    check_loads(rows)
    check_counts(rows)


def check_loads(rows: list[dict[str, Any]]) -> None:
    beside = [row for row in rows if not row["case"]]
    assert {(row["path"], row["in_flight"], row["workers"]) for row in beside} == {
        (path, in_flight, workers)
        for path, workers in (("bso", 1), ("bso", 2), ("zeus", 1), ("floor_echo", 1), ("floor_transaction", 0))
        for in_flight in (1, 8, 64, 256)
    }
    whole = [row for row in rows if row["case"] == "whole trials"]
    assert {(row["workers"], row["policy"]) for row in whole} == {
        *((workers, "curve") for workers in (1, 2, 4)),
        (1, "pruning_thompson"),
    }
    assert all(row["audited_trials"] >= row["jobs"] for row in whole)
    assert {row["history"] for row in rows if row["case"] == "history"} == {10, 1_000}
    assert {row["workers"] for row in rows if row["case"] == "one job"} == {1, 2}
    beside_one = [row for row in rows if "one_worker_at_equal_commits_us" in row]
    assert {row["workers"] for row in beside_one} == {2}
    messages = [row["messages"] for row in rows if row["case"] == "memory"]
    assert len(messages) >= 2
    assert messages == sorted(messages)


def check_counts(rows: list[dict[str, Any]]) -> None:
    of_engine = [row for row in rows if row["path"] == "engine_mariadb"]
    assert [row["sql_round_trips_per_batch"]["max"] for row in of_engine] == [2.0, 2.0]
    assert [row["sql_round_trips"]["median"] for row in of_engine] == [2.0, 2 / 32]
    for row in (row for row in rows if (row["path"], row["case"]) == ("bso", "counted")):
        assert row["sql_round_trips_per_batch"]["min"] >= 2
        # a method, a header and a body for each command, each reply and each event; confirmations may be of several
        assert row["client_sent"] == {"median": 3.0, "min": 3.0, "max": 3.0}
        assert 3 < row["client_received"]["min"] <= row["client_received"]["max"] <= 4
        assert row["worker_sent"]["min"] >= 6
        assert row["worker_received"]["min"] >= 3
