"""``bso recur``: trainings launched as a scheduler would, whatever becomes of them."""

import contextlib
import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import Command
from tests.servers import PATIENCE_S, eventually


@pytest.mark.slow
def test_each_recurrence_is_launched_with_an_id_of_its_own(bso: Command, training: list[str]) -> None:
    shown = bso.json("recur", 2, "--", *training, "goes")
    assert [one["exit_code"] for one in shown["recurrences"]] == [0, 0]
    trials = bso.json("jobs", "show", "toy")["trials"]
    assert [trial["recurrence_id"] for trial in trials] == [one["recurrence_id"] for one in shown["recurrences"]]
    assert len({trial["recurrence_id"] for trial in trials}) == 2
    assert shown["cost"] == pytest.approx(sum(trial["cost"] for trial in trials))


@pytest.mark.slow
def test_trainings_find_the_address_in_the_file_that_has_it_unless_an_option_names_another(
    bso: Command, training: list[str], tmp_path: Path
) -> None:
    named, given = (f"sqlite:///{tmp_path}/{name}.sqlite" for name in ("named", "given"))
    file = tmp_path / "url"
    file.write_text(f"{named}\n")
    bso.ok("recur", 1, "--", *training, "goes", BSO_URL_FILE=str(file))
    bso.ok("recur", 2, "--url", given, "--", *training, "goes", BSO_URL_FILE=str(file))
    shown = [bso.json("jobs", "show", "toy", BSO_URL=url)["trials"] for url in (named, given)]
    assert [len({trial["recurrence_id"] for trial in trials}) for trials in shown] == [1, 2]


def test_exit_code_75_launches_again_in_the_same_recurrence(bso: Command, training: list[str]) -> None:
    shown = bso.json("recur", 1, "--", *training, "fails")
    [recurrence] = shown["recurrences"]
    assert (recurrence["exit_code"], recurrence["launches"]) == (0, 2)
    assert [trial["outcome"] for trial in recurrence["trials"]] == ["not_converged", "converged"]
    trials = bso.json("jobs", "show", "toy")["trials"]
    assert {trial["recurrence_id"] for trial in trials} == {recurrence["recurrence_id"]}
    assert [trial["attempt"] for trial in trials] == [1, 2]


@pytest.mark.slow
def test_a_recurrence_without_a_model_is_counted_and_no_success(bso: Command, tmp_path: Path) -> None:
    script = tmp_path / "gives_up.py"
    script.write_text(GIVES_UP)
    done = bso("recur", 2, "--json", "--", sys.executable, script)
    assert done.returncode == 1, done.stderr
    shown = json.loads(done.stdout)
    assert [one["exit_code"] for one in shown["recurrences"]] == [0, 0]
    assert (shown["failed"], shown["without_model"]) == (0, 2)
    assert "0 failed, 1 without a model" in bso("recur", 1, "--", sys.executable, script).stdout


GIVES_UP = """
from bso_client import BatchSizeOptimizer, JobSpec

bso = BatchSizeOptimizer(JobSpec(job_id="toy", batch_sizes=[8, 16], default_batch_size=16, target_metric=0.9,
                                 max_epochs=2, max_attempts=1, beta_knob=None))
for trial in bso.trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.1)
"""


def test_what_trains_while_the_optimizer_is_away_counts_in_its_own_recurrence(bso: Command, tmp_path: Path) -> None:
    script, file = tmp_path / "locked_out.py", tmp_path / "jobs.sqlite"
    script.write_text(LOCKED_OUT)
    done = bso("recur", 3, "--json", "--url", f"sqlite:///{file}", "--", sys.executable, script, file)
    assert done.returncode == 1, done.stderr
    found = [
        [(trial["trial_number"], trial["outcome"]) for trial in one["trials"]]
        for one in json.loads(done.stdout)["recurrences"]
    ]
    assert found == [[(1, "converged")], [(None, "converged")], [(3, "not_converged")]]
    assert json.loads(done.stdout)["without_model"] == 1


LOCKED_OUT = """
import os, sqlite3, sys
from bso_client import BatchSizeOptimizer, JobSpec

night = int(os.environ["BSO_RECURRENCE_NUMBER"])
if night == 2:
    lock = sqlite3.connect(sys.argv[1])
    lock.execute("BEGIN EXCLUSIVE")
spec = JobSpec(job_id="toy", batch_sizes=[8, 16], default_batch_size=16, target_metric=0.9, max_epochs=2,
               max_attempts=1, beta_knob=None)
bso = BatchSizeOptimizer(spec, unreachable_timeout=0.2 if night == 2 else 60.0)
for trial in bso.trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.1 if night == 3 else 0.95)
bso.close(timeout=0.1)
"""


@pytest.mark.slow
def test_a_target_out_of_reach_takes_one_training_a_night_and_all_commands_say_so(bso: Command, tmp_path: Path) -> None:
    script = tmp_path / "out_of_reach.py"
    script.write_text(OUT_OF_REACH)
    train = (sys.executable, script)
    done = bso("recur", 5, "--json", "--", *train)
    assert done.returncode == 1, done.stderr
    nights = json.loads(done.stdout)["recurrences"]
    assert [[trial["batch_size"] for trial in night["trials"]] for night in nights[3:]] == [[16], [16]]
    assert [len(night["trials"]) for night in nights] == [3, 3, 3, 1, 1]
    assert "needs attention: 5 recurrences in a row" in nights[-1]["trials"][-1]["warnings"][0]

    done = bso("recur", 1, "--", *train)
    for printed in (done.stdout, done.stderr, bso("jobs", "list").stderr, bso.ok("jobs", "show", "toy")):
        said = " ".join(printed.split())
        assert "6 recurrences in a row ended without a model: no training reached a metric of at least 5" in said
        assert "Check higher_is_better_metric (True) and the training itself" in said
    assert "needs attention" in bso.ok("jobs", "list")
    [job] = bso.json("jobs", "list")
    assert [(kind["needs_attention"], kind["attention"][:13]) for kind in job["kinds"]] == [(True, "6 recurrences")]
    assert "somebody should look at this job: 6 recurrences in a row" in bso.ok("jobs", "why", "toy")
    [finding] = [one for one in bso.json("doctor")["findings"] if one["topic"] == "jobs"]
    assert "job toy needs attention: 6 recurrences in a row" in finding["found"]

    bso.ok("recur", 1, "--", *train, REACHED="5")
    assert "needs attention" not in bso.ok("jobs", "list") + bso.ok("jobs", "show", "toy")
    assert len(bso.json("jobs", "show", "toy")["trials"]) == 3 * 3 + 3 + 1


OUT_OF_REACH = """
import os
from bso_client import BatchSizeOptimizer, JobSpec

bso = BatchSizeOptimizer(JobSpec(job_id="toy", batch_sizes=[8, 16, 32], default_batch_size=16, target_metric=5,
                                 max_epochs=2))
for trial in bso.trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(float(os.environ.get("REACHED", "0.9")) if trial.epoch else 0.5)
"""


def test_launches_of_one_recurrence_are_limited(bso: Command, training: list[str]) -> None:
    done = bso("recur", 1, "--launches", 1, "--", *training, "fails")
    assert done.returncode == 75


@pytest.mark.slow
def test_the_trial_of_a_killed_training_is_finished_as_interrupted(bso: Command, training: list[str]) -> None:
    done = bso("recur", 3, "--", *training, "killed")
    assert done.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in done.stderr
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert (trial["state"], trial["outcome"]) == ("ended", "interrupted")
    assert "SIGKILL" in trial["outcome_reason"]


def test_a_failure_stops_with_the_trainings_exit_code(bso: Command, training: list[str]) -> None:
    done = bso("recur", 3, "--", *training, "crashes")
    assert done.returncode == 1
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert trial["outcome"] == "interrupted"
    assert "the data are gone" in trial["outcome_reason"]


@pytest.mark.slow
def test_if_asked_to_it_goes_on_after_a_failure(bso: Command, training: list[str]) -> None:
    done = bso("recur", 2, "--keep-going", "--", *training, "crashes")
    assert done.returncode == 1
    assert "2 of 2 recurrences done, 2 failed" in done.stdout
    assert "different jobs" not in done.stderr
    assert len(bso.json("jobs", "show", "toy")["trials"]) == 2


def test_sigterm_is_passed_on_and_no_further_recurrence_begins(
    bso: Command, training: list[str], tmp_path: Path
) -> None:
    reached = tmp_path / "reached"
    process = bso.start("recur", 3, "--", *training, "waits", reached)
    eventually(reached.exists)
    process.send_signal(signal.SIGTERM)
    shown, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM, complaints
    assert "0 of 3 recurrences done, 0 failed, 0 without a model, 1 interrupted" in shown
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert (trial["outcome"], "SIGTERM" in trial["outcome_reason"]) == ("interrupted", True)


def test_a_training_that_asks_for_another_launch_when_recur_is_stopped_gets_none(bso: Command, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    script = f"trap 'exit 75' TERM; touch {shlex.quote(str(reached))}; while true; do sleep 0.05; done"
    process = bso.start("recur", 1, "--", "bash", "-c", script)
    eventually(reached.exists)
    process.send_signal(signal.SIGTERM)
    shown, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM, complaints
    assert "still asks for another one: bso recur was stopped" in " ".join((shown + complaints).split())


def test_ctrl_c_reaches_the_training_once(bso: Command, training: list[str], tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    process, terminal = bso.start_in_terminal("recur", 3, "--", *training, "waits", reached)
    eventually(reached.exists)
    os.write(terminal, b"\x03")
    shown = read_to_the_end(terminal)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert shown.count("KeyboardInterrupt") == 2  # the end of its traceback, and the reason that was recorded
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert trial["outcome"] == "interrupted"


def read_to_the_end(terminal: int) -> str:
    """What a terminal shows until everybody has left it."""
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody is left
        while more := os.read(terminal, 4096):
            shown += more
    os.close(terminal)
    return shown.decode()


def test_a_training_that_ignores_a_signal_is_killed_in_the_end(
    bso: Command, training: list[str], tmp_path: Path
) -> None:
    reached = tmp_path / "reached"
    process = bso.start("recur", 3, "--grace", 0.2, "--", *training, "deaf", reached)
    eventually(reached.exists)
    process.send_signal(signal.SIGTERM)
    _, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGTERM
    said = "did not end within 200 ms after SIGTERM: killed"
    assert f"launch 1 {said}" in complaints
    [trial] = bso.json("jobs", "show", "toy")["trials"]
    assert trial["outcome"] == "interrupted"
    assert said in trial["outcome_reason"]
    assert "memory" not in complaints + trial["outcome_reason"]


def test_a_second_ctrl_c_kills_a_training_that_does_not_end(bso: Command, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    script = f"trap '' INT; touch {shlex.quote(str(reached))}; while true; do sleep 0.05; done"
    process, terminal = bso.start_in_terminal("recur", 1, "--grace", 600, "--", "bash", "-c", script)
    eventually(reached.exists)
    os.write(terminal, b"\x03")
    begun = b""
    while b"waiting up to 10 min 00 s for the training to end; Ctrl-C again kills it" not in begun:
        begun += os.read(terminal, 4096)
    os.write(terminal, b"\x03")
    shown = read_to_the_end(terminal)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    assert "launch 1 did not end after SIGINT, and SIGINT came again: killed" in shown


def test_a_command_that_is_not_there_is_refused_before_anything_begins(bso: Command, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    said = bso.refused("recur", 1, "--log-dir", folder, "--", "no-such-program")
    assert said.startswith("bso: there is no program 'no-such-program'")
    assert not folder.exists()


def test_a_file_that_may_not_be_run_is_refused_before_anything_begins(bso: Command, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch(mode=0o644)
    assert bso.refused("recur", 1, "--", script).startswith(f"bso: '{script}' may not be run")


def test_a_command_that_trains_nothing_is_noticed(bso: Command) -> None:
    done = bso("recur", 1, "--", "true")
    assert done.returncode == 0
    assert "began no trial" in done.stderr


@pytest.mark.parametrize(("script", "code"), [("exit 1", 1), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_a_command_that_failed_is_not_asked_whether_it_trains(bso: Command, script: str, code: int) -> None:
    done = bso("recur", 2, "--", "sh", "-c", script)
    assert done.returncode == code
    assert "does it train" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "how many recurrences? which command? got neither"),
        (("x",), "how many recurrences? expected a whole number before the command, got 'x'"),
        (("--", "true"), "how many recurrences? expected a whole number before the command, got 'true'"),
        ((0,), "how many recurrences? expected at least 1, got 0"),
        ((0, "--", "true"), "how many recurrences? expected at least 1, got 0"),
        ((2,), "which command? got only the number of recurrences, 2"),
    ],
)
def test_what_is_missing_is_named_with_what_came(bso: Command, words: tuple[object, ...], said: str) -> None:
    done = bso("recur", *words)
    assert done.returncode == 2
    assert f"{said}. As in: bso recur 20 -- python train.py" in " ".join(done.stderr.replace("│", " ").split())


def test_what_the_command_prints_does_not_disturb_the_json(bso: Command) -> None:
    shown = bso.json("recur", 1, "--", "echo", "hello")
    assert shown["failed"] == 0


@pytest.mark.slow
def test_recurrences_of_different_jobs_are_warned_of(bso: Command, training: list[str]) -> None:
    script = f"BSO_JOB_ID=night-$BSO_RECURRENCE_NUMBER exec {' '.join(training)} goes"
    done = bso("recur", 2, "--", "sh", "-c", script)
    assert "the recurrences trained different jobs (night-1, night-2)" in done.stderr
    assert "BSO_JOB_ID" in done.stderr
