"""``bso recur`` on a schedule, what it tells its command, and its summary."""

import json
import signal
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.conftest import Command
from tests.servers import PATIENCE_S

pytestmark = pytest.mark.slow


def test_a_period_begins_now_and_goes_on_from_there(bso: Command, tmp_path: Path) -> None:
    done = bso("recur", 3, "--every", "1s", "--log-dir", tmp_path, "--", "true")
    assert done.returncode == 0, done.stderr
    assert "recurrence 2 is due at " in done.stderr
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*/recurrence.json"))]
    due = [datetime.fromisoformat(one["due_at"]) for one in found]
    began = [datetime.fromisoformat(one["began_at"]) for one in found]
    since = datetime.fromisoformat(json.loads((tmp_path / "run.json").read_text())["began_at"])
    periods = [(one - since) / timedelta(seconds=1) for one in due[1:]]
    assert all(count.is_integer() for count in periods), periods
    assert 1 <= periods[0] < periods[1]  # an occasion that passes meanwhile is missed
    assert all(one >= other for one, other in zip(began, due, strict=True))


def test_a_driver_that_waits_for_the_night_says_so_and_can_be_stopped(bso: Command) -> None:
    waiting = bso.start("recur", "--cron", "0 3 * * *", "--", "true", TZ="UTC")
    assert waiting.stderr is not None
    said = waiting.stderr.readline()
    assert "recurrence 1 is due at " in said
    assert " 03:00:00, in " in said
    waiting.send_signal(signal.SIGTERM)
    shown, _ = waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 128 + signal.SIGTERM
    assert "0 recurrences done" in shown


def test_what_is_no_schedule_is_refused_before_anything_is_made(bso: Command, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert "'0 25 * * *' is no schedule (Bad hour)" in bso.refused(
        "recur", "--cron", "0 25 * * *", "--log-dir", folder, "--", "true"
    )
    assert "'daily' is no period" in bso.refused("recur", "--every", "daily", "--log-dir", folder, "--", "true")
    assert not folder.exists()
    assert bso("recur", "--every", "1h", "--cron", "0 3 * * *", "--", "true").returncode == 2
    endless = bso("recur", "--", "true")
    assert (endless.returncode, "how many recurrences?" in endless.stderr) == (2, True)


def test_the_command_is_told_its_recurrence_launch_seed_and_folder(bso: Command, tmp_path: Path) -> None:
    told = tmp_path / "told"
    words = f'echo "$BSO_RECURRENCE_NUMBER $BSO_LAUNCH_NUMBER $BSO_SEED $BSO_RECURRENCE_DIR" >>{told}'
    bso.ok("recur", 2, "--seed", 41, "--log-dir", tmp_path / "run", "--", "sh", "-c", words)
    assert told.read_text().splitlines() == [
        f"1 1 41 {tmp_path}/run/recurrence-0001",
        f"2 1 42 {tmp_path}/run/recurrence-0002",
    ]


def test_a_batch_size_that_failed_is_launched_again_though_a_launcher_hides_the_75(
    bso: Command, training: list[str]
) -> None:
    shown = bso.json("recur", 1, "--", "sh", "-c", f"{' '.join(training)} fails || exit 1")
    [recurrence] = shown["recurrences"]
    assert (recurrence["exit_code"], recurrence["launches"], recurrence["has_model"]) == (0, 2, True)


_COSTLY = """
from bso_client import BatchSizeOptimizer, HardwareKind, JobSpec

class Meter:
    # An epoch takes as many joules as the batch size says.
    def begin_window(self, key): ...
    def end_window(self, key):
        from types import SimpleNamespace
        return SimpleNamespace(time=1.0, total_energy=float(bso.current_batch_size))

spec = JobSpec(job_id="toy", batch_sizes=[10, 20], default_batch_size=20, target_metric=0.9, eta_knob=1.0)
bso = BatchSizeOptimizer(spec, monitor=Meter())
bso.current_batch_size = bso.get_batch_size()
bso.on_train_begin()
bso.on_evaluate(0.95)
"""


def test_the_summary_says_what_was_saved(bso: Command, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_COSTLY)
    shown = bso.json("recur", 6, "--log-dir", tmp_path / "run", "--", sys.executable, script)
    sizes = [one["trials"][0]["batch_size"] for one in shown["recurrences"]]
    assert {10, 20} <= set(sizes)
    assert [one["energy_j"] for one in shown["recurrences"]] == [float(size) for size in sizes]
    assert all(one["time_s"] > 0 for one in shown["recurrences"])
    saving = shown["saving"]
    assert (saving["default_cost"], saving["cost"]) == (20.0, sum(sizes) / 6)
    assert saving["share"] == 1 - sum(sizes) / 6 / 20
    words = " ".join(bso.ok("recur", "--summary", "--log-dir", tmp_path / "run").split())
    assert f"{saving['share']:.0%} less than a training with the default batch size 20" in words
