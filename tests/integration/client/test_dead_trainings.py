"""Embedded: a trial whose process is gone is suspended when the next one begins, not only after its lease."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from bso.domain.events import EpochReported, TrialEnded
from bso.domain.trial import Outcome, TrialState
from bso_client.transports.presence import Presence, Trained
from tests.integration.client.scripts import Script, recorded_events, recorded_trials
from tests.servers import PATIENCE_S

BEGIN = """
if __name__ == "__main__":
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    print("ready", flush=True)
    signal.pause()
"""
TRAIN = """
if __name__ == "__main__":
    for trial in bso.trials():
        with trial:
            while not trial.finished:
                trial.on_evaluate(0.95)
"""

WITH_CHECKPOINT = """
import json, pathlib

if __name__ == "__main__":
    checkpoint = pathlib.Path(sys.argv[1])
    saved = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
    for trial in bso.resumable_trials(saved):
        with trial:
            while not trial.finished:
                trial.on_evaluate(0.95 if trial.epoch >= 3 else 0.1)
                if trial.epoch == 1:
                    checkpoint.write_text(json.dumps(bso.state_dict()))
                if trial.epoch == 2 and saved is None:
                    print("ready", flush=True)
                    signal.pause()
        print(f"trial {trial.trial_number}, resumed: {trial.is_resumed}, converged: {trial.converged}", flush=True)
"""


def runs(*command: str) -> bool:
    """Whether a program is there, and may do this here."""
    try:
        return subprocess.run([*command, "true"], capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
    except FileNotFoundError:
        return False


CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
DENIED = ("-e", "trace=flock", "-e", "inject=flock:error=ENOSYS")
WITHOUT_LOCKS = ("strace", "-f", "-o", "/dev/null", *DENIED, "setpriv", "--pdeathsig", "KILL")


def states(folder: Path) -> list[tuple[TrialState, Outcome | None]]:
    return [(trial.state, trial.outcome) for trial in recorded_trials(folder)]


def records(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "bso.sqlite-trials").glob("*.json"))


def test_the_trial_of_a_killed_process_is_suspended_by_the_next_beginning(tmp_path: Path) -> None:
    with Script(tmp_path, BEGIN).running() as process:
        process.kill()
        process.wait(PATIENCE_S)
    assert states(tmp_path) == [(TrialState.RUNNING, None)]
    assert Script(tmp_path, TRAIN).run().returncode == 0
    assert states(tmp_path)[0] == (TrialState.SUSPENDED, None), "although its lease runs"
    assert states(tmp_path)[-1] == (TrialState.ENDED, Outcome.CONVERGED)
    assert not records(tmp_path)


def test_a_killed_training_goes_on_with_the_trial_that_was_suspended(tmp_path: Path) -> None:
    """Its second epoch was reported, and is in no checkpoint: it is trained again, and counts once."""
    checkpoint = str(tmp_path / "checkpoint.json")
    with Script(tmp_path, WITH_CHECKPOINT).running(checkpoint) as process:
        process.kill()
        process.wait(PATIENCE_S)
    with Script(tmp_path, BEGIN).running():
        assert states(tmp_path) == [(TrialState.SUSPENDED, None), (TrialState.RUNNING, None)]
        resumed = Script(tmp_path, WITH_CHECKPOINT).run(checkpoint)
        assert resumed.stdout == "trial 1, resumed: True, converged: True\n", resumed.stderr
        assert states(tmp_path) == [(TrialState.ENDED, Outcome.CONVERGED), (TrialState.RUNNING, None)]
    events = recorded_events(tmp_path)
    reported = [event for event in events if isinstance(event, EpochReported) and event.trial_number == 1]
    assert [event.epoch for event in reported] == [1, 2, 3, 4]
    costs = [event.time_s for event in reported]
    assert costs == sorted(costs)
    ended = [event.time_s for event in events if isinstance(event, TrialEnded) and event.trial_number == 1]
    assert ended == costs[-1:]


def test_the_trial_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    with Script(tmp_path, BEGIN).running() as process:
        assert Script(tmp_path, TRAIN).run().returncode == 0
        assert states(tmp_path)[0] == (TrialState.RUNNING, None)
        assert len(records(tmp_path)) == 1
        process.kill()
        process.wait(PATIENCE_S)


def test_a_frozen_process_is_a_living_one(tmp_path: Path) -> None:
    with Script(tmp_path, BEGIN).running() as process:
        process.send_signal(signal.SIGSTOP)
        assert Script(tmp_path, TRAIN).run().returncode == 0
        assert states(tmp_path)[0] == (TrialState.RUNNING, None)
        process.kill()
        process.wait(PATIENCE_S)


@pytest.mark.skipif(not runs(*CONTAINER), reason="no right to make namespaces, as containers have them")
def test_a_container_that_shares_the_folder_is_seen_as_it_is(tmp_path: Path) -> None:
    """Its process ids mean nothing here, its locks do."""
    with Script(tmp_path, BEGIN).running(inside=CONTAINER) as process:
        assert Script(tmp_path, TRAIN).run().returncode == 0
        assert states(tmp_path)[0] == (TrialState.RUNNING, None)
        process.kill()
        process.wait(PATIENCE_S)
    assert Script(tmp_path, TRAIN).run().returncode == 0
    assert states(tmp_path)[0] == (TrialState.SUSPENDED, None)


def test_in_a_copy_of_the_file_alone_the_lease_decides(tmp_path: Path) -> None:
    """On another machine, for example: who trains is not known there."""
    (tmp_path / "copy" / "state").mkdir(parents=True)
    with Script(tmp_path, BEGIN).running():
        for file in (tmp_path / "state").glob("bso.sqlite*"):
            if file.is_file():
                shutil.copy(file, tmp_path / "copy" / "state")
    assert Script(tmp_path / "copy", TRAIN).run().returncode == 0
    assert states(tmp_path / "copy")[0] == (TrialState.RUNNING, None)


@pytest.mark.skipif(not runs(*WITHOUT_LOCKS), reason="strace, which denies the locks, is not there or may not trace")
def test_where_the_file_system_has_no_locks_the_lease_decides(tmp_path: Path) -> None:
    with Script(tmp_path, BEGIN).running(inside=WITHOUT_LOCKS):
        assert not records(tmp_path)


def test_ended_trainings_leave_nothing_behind(tmp_path: Path) -> None:
    for _ in range(2):
        assert Script(tmp_path, TRAIN).run().returncode == 0
    assert not list((tmp_path / "state" / "bso.sqlite-trials").iterdir())


def test_where_nobody_can_write_down_who_trains_the_lease_decides(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "bso.sqlite-trials").write_text("a file, where a folder should be", encoding="utf-8")
    with Script(tmp_path, BEGIN).running() as process:
        process.kill()
        process.wait(PATIENCE_S)
    assert Script(tmp_path, TRAIN).run().returncode == 0
    assert states(tmp_path)[0] == (TrialState.RUNNING, None)


def trained(number: int, job_id: str = "job") -> Trained:
    return Trained(job_id=job_id, trial_number=number, trial_id=f"id-{job_id}-{number}")


def test_a_record_that_was_torn_names_no_trial_and_is_removed(tmp_path: Path) -> None:
    presence = Presence(tmp_path)
    (tmp_path / "job~torn.json").write_text('{"job_id": "jo', encoding="utf-8")
    (tmp_path / "job~odd.json").write_text(json.dumps({"colour": "red"}), encoding="utf-8")
    with presence.gone("job") as gone:
        assert not gone
    assert not list(tmp_path.glob("*.json"))


def test_what_could_not_be_suspended_is_found_again(tmp_path: Path) -> None:
    former = Presence(tmp_path)
    former.enter(trained(1))
    former.enter(trained(2, "other"))
    former.close()
    try:
        with Presence(tmp_path).gone("job") as gone:
            assert gone == [trained(1)]
            raise TimeoutError
    except TimeoutError:
        pass
    with Presence(tmp_path).gone("job") as gone:
        assert gone == [trained(1)]
    with Presence(tmp_path).gone("job") as gone:
        assert not gone
    with Presence(tmp_path).gone("other") as gone:
        assert gone == [trained(2, "other")]
