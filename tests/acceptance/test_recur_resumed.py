"""``bso recur --log-dir``: what is kept of a run, and how another driver goes on with it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Command
from tests.servers import PATIENCE_S, eventually

pytestmark = pytest.mark.slow

# Its second recurrence stops in the middle, at a gate: a FIFO that somebody has to write to.
_HALTING = """
import os, sys
from bso_client import BatchSizeOptimizer, JobSpec

gate, reached = sys.argv[1:]
spec = JobSpec(job_id="toy", batch_sizes=[8, 16, 32], default_batch_size=16, target_metric=0.9, beta_knob=None)
bso = BatchSizeOptimizer(spec)
with bso.relaunching():
    if "BSO_SEED" in os.environ:
        print("seed", os.environ["BSO_SEED"])
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.3)
    print("half of recurrence", os.environ["BSO_RECURRENCE_NUMBER"], flush=True)
    if (os.environ["BSO_RECURRENCE_NUMBER"], os.environ["BSO_LAUNCH_NUMBER"]) == ("2", "1"):
        with open(reached, "w") as file:
            file.write(str(os.getpid()))
        with open(gate) as opened:
            opened.read()
    print("the other half", file=sys.stderr)
    bso.on_evaluate(0.95)
"""


@dataclass(frozen=True, kw_only=True)
class Halting:
    """A training that halts in its second recurrence until ``let_through``."""

    command: list[str]
    gate: Path
    reached: Path

    @property
    def pid(self) -> int:
        return int(self.reached.read_text())

    def wait_until_reached(self) -> None:
        eventually(lambda: self.reached.exists() and self.reached.read_text() != "")

    def let_through(self) -> None:
        with self.gate.open("w") as gate:
            gate.write("go on")


@pytest.fixture
def halting(tmp_path: Path) -> Halting:
    script, gate, reached = tmp_path / "train.py", tmp_path / "gate", tmp_path / "reached"
    script.write_text(_HALTING)
    os.mkfifo(gate)
    return Halting(command=[sys.executable, *map(str, (script, gate, reached))], gate=gate, reached=reached)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "nightly"


def recurrences(bso: Command, log_dir: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bso.json("recur", "--summary", "--log-dir", log_dir)["recurrences"]
    return found


def test_each_launch_leaves_its_output_and_what_came_of_it(bso: Command, training: list[str], log_dir: Path) -> None:
    done = bso(
        "recur", 2, "--log-dir", log_dir, "--", "sh", "-c", f"echo hello; echo oh >&2; {' '.join(training)} fails"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hello\noh\n") == 3
    for log in ("recurrence-0001/launch-1.log", "recurrence-0001/launch-2.log", "recurrence-0002/launch-1.log"):
        assert (log_dir / log).read_text().startswith("hello\noh\n")
    first, second = recurrences(bso, log_dir)
    assert (first["launches"], first["exit_code"]) == (2, 0)
    assert [trial["outcome"] for trial in first["trials"]] == ["not_converged", "converged"]
    assert first["ended_at"] < second["began_at"] < second["ended_at"]


def test_a_training_that_outlives_its_killed_driver_is_left_alone_and_not_started_twice(
    bso: Command, halting: Halting, log_dir: Path
) -> None:
    driver = bso.start("recur", 3, "--log-dir", log_dir, "--", *halting.command)
    halting.wait_until_reached()
    driver.kill()
    driver.wait(PATIENCE_S)
    assert "or by a training that is still running" in bso.refused("recur", "--log-dir", log_dir)
    halting.let_through()
    eventually(lambda: not _is_running(halting.pid))

    done = bso("recur", "--log-dir", log_dir)
    assert done.returncode == 0, done.stderr
    assert "recurrence 2 of 3, resumed" in done.stderr
    assert "the other half" in (log_dir / "recurrence-0002/launch-1.log").read_text()
    assert [(one["number"], one["launches"]) for one in recurrences(bso, log_dir)] == [(1, 1), (2, 1), (3, 1)]
    trials = bso.json("jobs", "show", "toy")["trials"]
    assert [trial["outcome"] for trial in trials] == ["converged"] * 3
    assert [trial["recurrence_id"] for trial in trials] == [one["recurrence_id"] for one in recurrences(bso, log_dir)]


def test_a_killed_driver_and_a_killed_training_are_gone_on_with_in_the_same_recurrence(
    bso: Command, halting: Halting, log_dir: Path
) -> None:
    driver = bso.start("recur", 3, "--log-dir", log_dir, "--seed", 5, "--", *halting.command)
    halting.wait_until_reached()
    [_, unfinished] = recurrences(bso, log_dir)
    assert (unfinished["launches"], unfinished["exit_code"]) == (1, None)  # written before the launch
    driver.kill()
    driver.wait(PATIENCE_S)
    os.kill(halting.pid, signal.SIGKILL)
    eventually(lambda: not _is_running(halting.pid))

    done = bso("recur", "--log-dir", log_dir)
    assert done.returncode == 0, done.stderr
    assert "ended after bso recur was killed" in done.stderr
    first, second, third = recurrences(bso, log_dir)
    assert (first["number"], second["recurrence_id"]) == (1, unfinished["recurrence_id"])
    assert [one["launches"] for one in (second, third)] == [2, 1]
    assert (log_dir / "recurrence-0002/launch-2.log").read_text().startswith("seed 7\n")
    assert (log_dir / "recurrence-0003/launch-1.log").read_text().startswith("seed 8\n")
    trials = bso.json("jobs", "show", "toy")["trials"]
    assert [(trial["recurrence_id"], trial["outcome"]) for trial in trials] == [
        (first["recurrence_id"], "converged"),
        (second["recurrence_id"], "interrupted"),
        (second["recurrence_id"], "converged"),
        (third["recurrence_id"], "converged"),
    ]


def _is_running(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(found.strip()) and not found.startswith("Z")


def test_a_second_driver_is_refused_while_anybody_may_look(bso: Command, halting: Halting, log_dir: Path) -> None:
    driver = bso.start("recur", 3, "--log-dir", log_dir, "--", *halting.command)
    halting.wait_until_reached()
    refusal = bso.refused("recur", "--log-dir", log_dir)
    assert f"is in use by process {driver.pid} on " in refusal
    shown = bso.json("recur", "--summary", "--log-dir", log_dir)
    assert [[trial["outcome"] for trial in one["trials"]] for one in shown["recurrences"]] == [["converged"], [None]]
    table = bso.ok("recur", "--summary", "--log-dir", log_dir)
    assert ("… " in table, "not ended" in table, "1 of 3 recurrences done, 0 failed, 0 without" in table) == (True,) * 3
    halting.let_through()
    driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 0


def test_a_stopped_run_goes_on_with_the_recurrence_it_was_in(bso: Command, halting: Halting, log_dir: Path) -> None:
    driver = bso.start("recur", 2, "--log-dir", log_dir, "--", *halting.command)
    halting.wait_until_reached()
    driver.send_signal(signal.SIGTERM)
    _, complaints = driver.communicate(timeout=PATIENCE_S)
    assert driver.returncode == 128 + signal.SIGTERM
    assert f"go on with this recurrence: bso recur --log-dir {log_dir}" in complaints
    [_, stopped] = recurrences(bso, log_dir)
    bso.ok("recur", "--log-dir", log_dir)
    [_, second] = recurrences(bso, log_dir)
    assert (second["recurrence_id"], second["launches"]) == (stopped["recurrence_id"], 2)


def test_a_run_that_is_over_repeats_nothing_and_may_be_made_longer(
    bso: Command, training: list[str], log_dir: Path
) -> None:
    bso.ok("recur", 1, "--log-dir", log_dir, "--", *training, "goes")
    assert bso.json("recur", "--log-dir", log_dir)["requested"] == 1
    assert len(bso.json("jobs", "show", "toy")["trials"]) == 1
    shown = bso.json("recur", 2, "--log-dir", log_dir, "--", *training, "goes")
    assert [one["number"] for one in shown["recurrences"]] == [1, 2]
    assert len(bso.json("jobs", "show", "toy")["trials"]) == 2


def test_another_command_does_not_go_on_with_a_run(bso: Command, log_dir: Path) -> None:
    bso.ok("recur", 1, "--log-dir", log_dir, "--", "echo", "hello")
    assert "the command is 'echo hello', not 'echo goodbye'" in bso.refused(
        "recur", 1, "--log-dir", log_dir, "--", "echo", "goodbye"
    )


def test_nothing_is_made_where_there_is_nothing_to_run(bso: Command, log_dir: Path) -> None:
    nothing = bso("recur", "--log-dir", log_dir)
    assert (nothing.returncode, "which command?" in nothing.stderr) == (2, True)
    assert "holds no run" in bso.refused("recur", "--summary", "--log-dir", log_dir)
    assert not log_dir.exists()


def test_a_damaged_file_is_named(bso: Command, log_dir: Path) -> None:
    bso.ok("recur", 1, "--log-dir", log_dir, "--", "true")
    for damaged in ('{"command": ["true"]', '{"command": ["true"]}'):
        (log_dir / "run.json").write_text(damaged)
        assert "run.json is damaged" in bso.refused("recur", "--log-dir", log_dir)


# It keeps its trial with a checkpoint in the recurrence's folder, and stops at a gate the first time.
_WITH_CHECKPOINT = """
import json, os, pathlib, sys
from bso_client import BatchSizeOptimizer, JobSpec

gate, reached = sys.argv[1:]
checkpoint = pathlib.Path(os.environ["BSO_RECURRENCE_DIR"], "checkpoint.json")
spec = JobSpec(job_id="toy", batch_sizes=[8, 16], default_batch_size=16, target_metric=0.9, beta_knob=None)
bso = BatchSizeOptimizer(spec)
if checkpoint.exists():
    bso.load_state_dict(json.loads(checkpoint.read_text()))
for trial in bso.trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.2 + trial.epoch * 0.3)
            checkpoint.write_text(json.dumps(bso.state_dict()))
            if trial.epoch == 2 and os.environ["BSO_LAUNCH_NUMBER"] == "1":
                pathlib.Path(reached).write_text(str(os.getpid()))
                open(gate).read()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_training_with_a_checkpoint_goes_on_with_its_own_trial(
    bso: Command, halting: Halting, log_dir: Path, number: signal.Signals
) -> None:
    Path(halting.command[1]).write_text(_WITH_CHECKPOINT)
    driver = bso.start("recur", 1, "--log-dir", log_dir, "--", *halting.command)
    halting.wait_until_reached()
    if number is signal.SIGKILL:  # it can say nothing of its trial, as one that is slow to say it in time cannot
        os.kill(halting.pid, number)
    else:
        driver.send_signal(number)
    driver.communicate(timeout=PATIENCE_S)

    done = bso("recur", "--log-dir", log_dir)
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}"
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert (trial["outcome"], trial["epoch"]) == ("converged", 4.0)
    [recurrence] = recurrences(bso, log_dir)
    assert [(one["trial_number"], one["outcome"]) for one in recurrence["trials"]] == [(1, "converged")]


# It keeps its trial with a checkpoint of its own, and is killed once, after its second epoch.
_KILLED_ONCE = """
import json, os, pathlib, signal, sys
from bso_client import BatchSizeOptimizer, JobSpec

checkpoint, killed = map(pathlib.Path, sys.argv[1:])
spec = JobSpec(job_id="toy", batch_sizes=[8, 16], default_batch_size=16, target_metric=0.9, beta_knob=None)
bso = BatchSizeOptimizer(spec)
for trial in bso.resumable_trials(json.loads(checkpoint.read_text()) if checkpoint.exists() else None):
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.2 + trial.epoch * 0.3)
            checkpoint.write_text(json.dumps(bso.state_dict()))
            if trial.epoch == 2 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed_once(tmp_path: Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(_KILLED_ONCE)
    return [sys.executable, *map(str, (script, tmp_path / "checkpoint.json", tmp_path / "killed"))]


def test_a_training_that_was_killed_goes_on_from_a_checkpoint_wherever_that_is(
    bso: Command, killed_once: list[str], log_dir: Path
) -> None:
    done = bso("recur", 1, "--log-dir", log_dir, "--", *killed_once)
    assert done.returncode == 128 + signal.SIGKILL
    assert [trial["state"] for trial in bso.json("jobs", "show", "toy")["trials"]] == ["suspended"]
    resumed = bso("recur", "--log-dir", log_dir)
    assert resumed.returncode == 0, resumed.stderr
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert (trial["outcome"], trial["epoch"]) == ("converged", 4.0)
    assert "trial 1 of job toy: batch size 16, resumed" in resumed.stderr


def test_a_trial_that_began_outside_is_listed_as_resumed_with_its_cost(bso: Command, killed_once: list[str]) -> None:
    subprocess.run(killed_once, env=bso.environment, timeout=PATIENCE_S, check=False)
    done = bso("recur", 1, "--json", "--", *killed_once)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    [recurrence] = shown["recurrences"]
    found = [(one["trial_number"], one["outcome"], one["is_resumed"]) for one in recurrence["trials"]]
    assert found == [(1, "converged", True)]
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert shown["cost"] == pytest.approx(trial["cost"])
    assert "began no trial" not in done.stderr


def test_a_trial_that_the_next_recurrence_resumed_is_counted_once(bso: Command, killed_once: list[str]) -> None:
    done = bso("recur", 2, "--keep-going", "--json", "--", *killed_once)
    assert done.returncode == 128 + signal.SIGKILL
    shown = json.loads(done.stdout)
    assert [[one["outcome"] for one in each["trials"]] for each in shown["recurrences"]] == [
        ["interrupted"],
        ["converged"],
    ]
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert (shown["cost"], shown["time_s"]) == pytest.approx((trial["cost"], trial["time_s"]))


def test_a_checkpoint_that_no_launch_went_on_with_ends_with_its_recurrence(
    bso: Command, killed_once: list[str], tmp_path: Path, log_dir: Path
) -> None:
    assert bso("recur", 1, "--log-dir", log_dir, "--", *killed_once).returncode == 128 + signal.SIGKILL
    (tmp_path / "checkpoint.json").unlink()
    bso.ok("recur", "--log-dir", log_dir)
    trials = bso.json("jobs", "show", "toy")["trials"]
    assert [(trial["state"], trial["outcome"]) for trial in trials] == [
        ("ended", "interrupted"),
        ("ended", "converged"),
    ]


def test_the_command_gets_its_recurrence_launch_seed_and_folder(bso: Command, tmp_path: Path) -> None:
    printed = tmp_path / "noted"
    words = f'echo "$BSO_RECURRENCE_NUMBER $BSO_LAUNCH_NUMBER $BSO_SEED $BSO_RECURRENCE_DIR" >>{printed}'
    bso.ok("recur", 2, "--seed", 41, "--log-dir", tmp_path / "run", "--", "sh", "-c", words)
    assert printed.read_text().splitlines() == [
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
    assert (saving["share"], saving["count"], saving["others"]) == (1 - sum(sizes) / 6 / 20, 6, sizes.count(20))
    words = " ".join(bso.ok("recur", "--summary", "--log-dir", tmp_path / "run").split())
    assert f"a recurrence cost {saving['share']:.0%}" in words
    assert "less than a training with the default batch size 20 (means of 6 recurrences and" in words
    # With an eta of 1 a cost is an energy: the job's ledger comes to the same share.
    assert f"of energy ({saving['share']:.0%})" in " ".join(bso.ok("jobs", "show", "toy").split())
