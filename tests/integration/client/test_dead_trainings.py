"""Embedded: a trial whose process is gone is suspended when the next one begins, not only after its lease."""

import json
import signal
from pathlib import Path

from bso.domain.trial import Outcome, TrialState
from bso_client.transports.presence import Presence, Trained
from tests.integration.client.scripts import Script, recorded_trials
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
