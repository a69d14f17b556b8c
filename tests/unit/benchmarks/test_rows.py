"""Rows of build/bench.json, and the page that is made of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import page
from tests.benchmarks.figures import Figures
from tests.benchmarks.journeys import Driven, Tally
from tests.benchmarks.laboratory import QUICK, THOROUGH, Laboratory
from tests.benchmarks.loads import at_size
from tests.benchmarks.machine import Elapsed
from tests.benchmarks.rows import row_of, tell

ELAPSED = Elapsed(wall_s=2.0, cpu_s=0.4, others_s={"worker": 0.8})
DRIVEN = Driven(
    elapsed=ELAPSED,
    latencies_s=(0.1, 0.2, 0.3, 0.4),
    replies=(b"",) * 4,
    tally=Tally(taken=4, batches=2, commits=4),
)
DISTURBED = replace(DRIVEN, elapsed=replace(ELAPSED, foreign_s=1_000.0))
MACHINE = {"command": "make bench", "cpu": "a processor", "cores": 2, "python": "3.11.7"}


def test_a_row_has_each_quantity_with_median_min_and_max() -> None:
    slower = replace(DRIVEN, elapsed=replace(ELAPSED, wall_s=4.0))
    row = row_of("bso", [DRIVEN, slower, slower], in_flight=64, workers=1)
    assert (row["path"], row["case"], row["in_flight"], row["workers"]) == ("bso", "", 64, 1)
    assert row["per_second"] == {"median": 1.0, "min": 1.0, "max": 2.0}
    assert row["p50_ms"]["median"] == 200.0
    assert row["p99_ms"]["median"] == 400.0
    assert {name: one["median"] for name, one in row["cpu_us"].items()} == {"client": 1e5, "worker": 2e5}
    assert row["commands_per_batch"]["median"] == 2.0
    assert row["commands_per_commit"]["median"] == 1.0
    assert not row["foreign"]


def test_what_nobody_counts_is_not_in_the_row() -> None:
    row = row_of("floor_echo", [replace(DRIVEN, tally=Tally())], in_flight=1, workers=1)
    assert "commands_per_batch" not in row
    assert "commands_per_commit" not in row


def test_a_row_of_a_disturbed_window_is_marked() -> None:
    assert row_of("bso", [DRIVEN, DISTURBED], in_flight=1, workers=1)["foreign"]


@pytest.mark.parametrize(
    ("foreign_s", "cores", "is_disturbed"), [(0.3, 2, False), (0.5, 2, True), (0.5, 4, False), (-0.5, 2, False)]
)
def test_more_than_a_tenth_of_all_cores_disturbs(
    foreign_s: float, cores: int, is_disturbed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert replace(ELAPSED, foreign_s=foreign_s).is_disturbed == is_disturbed


def test_what_rounding_makes_of_a_short_window_disturbs_nothing() -> None:
    assert not replace(ELAPSED, wall_s=0.1, foreign_s=0.09).is_disturbed


async def windows_of(laboratory: Laboratory, *found: Driven) -> tuple[Driven, int]:
    """What is taken of these windows, and how many were measured."""
    left = list(found)

    async def window() -> Driven:
        return left.pop(0)

    return await laboratory.undisturbed(window), len(found) - len(left)


async def test_a_disturbed_window_is_measured_again_twice_at_most() -> None:
    less = replace(DRIVEN, elapsed=replace(ELAPSED, foreign_s=500.0))
    with Laboratory(THOROUGH, say=print) as laboratory:
        assert await windows_of(laboratory, DRIVEN, DRIVEN) == (DRIVEN, 1)
        assert await windows_of(laboratory, DISTURBED, DRIVEN, DRIVEN) == (DRIVEN, 2)
        assert await windows_of(laboratory, DISTURBED, less, DISTURBED, DRIVEN) == (less, 3)


async def test_windows_are_not_repeated_without_patience() -> None:
    with Laboratory(replace(QUICK, patience_s=0.0), say=print) as laboratory:
        assert await windows_of(laboratory, DISTURBED, DRIVEN) == (DISTURBED, 1)


def test_figures_stand_beside_a_peer_only_where_it_has_them() -> None:
    figures = Figures(benchmark="example")
    peer = replace(DRIVEN, elapsed=replace(ELAPSED, others_s={}))
    tell(figures, "case", [DRIVEN], peer="floor", peers=[peer])
    peers = {figure.quantity: figure.peer for figure in figures.found}
    assert peers["decisions"] == "floor"
    assert not peers["worker CPU per decision"]


def test_a_cost_between_two_sizes_is_shared_by_their_commands() -> None:
    measured = [(32.0, 200.0), (8.0, 500.0)]  # 100 us for each command, 3 200 us for each transaction
    assert at_size(16.0, measured) == pytest.approx(300.0)
    assert at_size(64.0, measured) == 200.0
    assert at_size(1.0, measured) == 500.0


def rows() -> list[dict[str, Any]]:
    """One of each kind."""
    bso = row_of("bso", [DRIVEN], in_flight=64, workers=1)
    zeus = row_of("zeus", [replace(DRIVEN, elapsed=replace(ELAPSED, wall_s=8.0))], in_flight=64, workers=1)
    about = {"jobs": 20, "policy": "curve"}
    one = {"median": 1.0, "min": 1.0, "max": 1.0}
    counted = {"sql_round_trips": one, "sql_round_trips_per_batch": one, "commands_per_batch": one}
    return [
        bso | about,
        zeus,
        bso | about | {"case": "one job"},
        bso | about | {"case": "one worker"},
        bso | about | {"case": "jobs are spread over two workers", "one_worker_at_equal_commits_us": 1e5},
        bso | {"case": "history", "history": 10},
        bso | {"case": "history", "history": 100_000, "foreign": True},
        bso | {"path": "embedded", "case": "embedded (SQLite)"},
        {"path": "client", "case": "import bso_client", "cpu_ms": one},
        {"path": "bso", "case": "counted", "in_flight": 1, "workers": 1, **counted, "client_sent": one},
        {"path": "worker", "case": "drain", "in_flight": 64, "workers": 1, "ms": one},
        {"path": "worker", "case": "memory", "in_flight": 256, "workers": 1, "messages": 100_000, "rss_mb": one},
    ]


@pytest.mark.slow
def test_the_page_has_a_table_for_each_kind_of_row_and_pictures(tmp_path: Path) -> None:
    path = page.write(MACHINE, rows(), tmp_path)
    text = path.read_text(encoding="utf-8")
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == [
        "Beside Zeus' server",
        "Other loads",
        "Two workers beside one",
        "With a long past",
        "What a training pays",
        "Once, and per epoch",
        "Counted",
        "The life of a worker",
        "Memory of a worker",
        "What each step brought",
    ]
    assert "| bso | 64 | 1 | 2 | 200 | 400 | 4.00 x |" in text
    assert "| bso * | 100 000 |" in text
    assert {one.name for one in tmp_path.glob("*.png")} == {"beside.png", "memory.png", "steps.png"}
    assert all(f"]({picture.name})" in text for picture in tmp_path.glob("*.png"))


def test_a_page_of_few_rows_leaves_the_other_sections_out(tmp_path: Path) -> None:
    text = page.write(MACHINE, rows()[2:3], tmp_path).read_text(encoding="utf-8")
    assert "Other loads" in text
    assert "Counted" not in text
