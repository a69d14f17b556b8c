import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bso.domain.trial import Outcome, TrialState
from bso_client.failures import OUT_OF_MEMORY_REASON
from tests.integration.client.scripts import Script, recorded_trials
from tests.servers import PATIENCE_S
from tests.servers.waiting import eventually

FLAT = """
if __name__ == "__main__":
    bso.get_batch_size()
    bso.on_train_begin()
    bso.on_evaluate(0.1)
"""
WAIT = """
    print("ready", flush=True)
    signal.pause()
"""


@pytest.mark.slow
def test_a_script_without_any_server_finds_a_model_again_and_again(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        if __name__ == "__main__":
            for trial in bso.trials():
                with trial:
                    while not trial.finished:
                        trial.on_evaluate(0.95 if trial.batch_size < 128 else 0.1)
        """,
    )
    results = [script.run() for _ in range(3)]

    assert [result.returncode for result in results] == [0, 0, 0], results[0].stderr
    assert str(tmp_path / "state" / "bso.sqlite") in results[0].stderr  # noted where it is
    trials = recorded_trials(tmp_path)
    assert all(trial.state is TrialState.ENDED for trial in trials)
    assert [trial.recurrence_id for trial in trials if trial.outcome is Outcome.CONVERGED] == [
        "recurrence-1",
        "recurrence-2",
        "recurrence-3",
    ]


def test_sigterm_ends_the_trial_and_then_the_process_as_ever(tmp_path: Path) -> None:
    with Script(tmp_path, FLAT + WAIT).running() as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM

    trial = recorded_trials(tmp_path)[0]
    assert (trial.outcome, trial.outcome_reason) == (Outcome.INTERRUPTED, "SIGTERM")


def test_what_other_signal_handlers_raise_does_not_keep_the_trial_from_ending(tmp_path: Path) -> None:
    body = """
    if __name__ == "__main__":
        import threading

        def fail(*_):
            raise RuntimeError("DataLoader worker is killed by signal")

        def terminate():
            for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGCHLD):
                signal.pthread_kill(threading.main_thread().ident, number)

        signal.signal(signal.SIGCHLD, fail)
        bso.get_batch_size()
        bso.on_train_begin()
        threading.Thread(target=terminate).start()
        threading.Event().wait()
    """
    result = Script(tmp_path, body).run()

    assert result.returncode in (-signal.SIGTERM, 1), result.stderr
    assert recorded_trials(tmp_path)[0].outcome is Outcome.INTERRUPTED


def test_a_script_with_its_own_sigterm_handler_ends_in_its_own_way(tmp_path: Path) -> None:
    body = """
    if __name__ == "__main__":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    """
    with Script(tmp_path, body + FLAT + WAIT).running() as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 7

    trial = recorded_trials(tmp_path)[0]
    assert (trial.outcome, trial.outcome_reason) == (Outcome.INTERRUPTED, "the process ended")


def test_ctrl_c_ends_the_trial(tmp_path: Path) -> None:
    with Script(tmp_path, FLAT + WAIT).running() as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT

    assert recorded_trials(tmp_path)[0].outcome_reason == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("last_words", "code", "outcome", "reason"),
    [
        ("sys.exit(3)", 3, Outcome.INTERRUPTED, "the process ended"),
        ("pass", 0, Outcome.INTERRUPTED, "the process ended"),
        ("raise ValueError('no more data')", 1, Outcome.INTERRUPTED, "ValueError: no more data"),
        ("raise RuntimeError('CUDA out of memory. Tried to')", 1, Outcome.INFEASIBLE, OUT_OF_MEMORY_REASON),
        ("bso.on_evaluate(0.95); sys.exit(4)", 4, Outcome.CONVERGED, "the metric 0.95 reached the target 0.9"),
    ],
    ids=["exit", "end", "exception", "out of memory", "after convergence"],
)
def test_the_end_of_a_flat_script_ends_its_trial(
    tmp_path: Path, last_words: str, code: int, outcome: Outcome, reason: str
) -> None:
    result = Script(tmp_path, f"{FLAT}    {last_words}\n").run()

    assert result.returncode == code, result.stderr
    trial = recorded_trials(tmp_path)[0]
    assert trial.outcome is outcome
    assert trial.outcome_reason.startswith(reason)


KEPT = """
    def evaluated(trials):
        for trial in trials:
            with bso, trial:
                yield trial.on_evaluate(0.1)

    def train(trials, before, inside, after):
        for trial in trials:
            exec(before)
            with trial:
                exec(inside)
                trial.on_evaluate(0.1)
            exec(after)
            break

    if __name__ == "__main__":
        kept = [bso.trials()]
        {}
"""


def test_a_second_ctrl_c_ends_the_wait_for_reports_and_they_are_kept(tmp_path: Path) -> None:
    assert Script(tmp_path, FLAT).run().returncode == 0
    nowhere = Script(tmp_path, FLAT + WAIT, url="amqp://ann:secret@127.0.0.1:1/bso")
    with nowhere.running() as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "Ctrl-C ends the wait" in line:
                process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == -signal.SIGINT
    text = "".join(said)
    assert "Exception ignored" not in text
    assert "reports could not be delivered: they are kept in" in text


@pytest.mark.parametrize(
    ("body", "code", "outcome"),
    [
        pytest.param("next(kept[0])", 0, Outcome.CANCELLED, id="before it begins"),
        pytest.param("next(kept[0]).__enter__()", 0, Outcome.INTERRUPTED, id="while it trains"),
        pytest.param("kept.append(evaluated(kept[0])); next(kept[1])", 0, Outcome.INTERRUPTED, id="in another one"),
        pytest.param("train(kept[0], '', '', '')", 0, Outcome.NOT_CONVERGED, id="after a break"),
        pytest.param("train(kept[0], '1 / 0', '', '')", 1, Outcome.CANCELLED, id="an exception before it"),
        pytest.param("train(kept.pop(), '', '1 / 0', '')", 1, Outcome.INTERRUPTED, id="an exception inside"),
        pytest.param("train(kept[0], '', '', '1 / 0')", 1, Outcome.NOT_CONVERGED, id="an exception after it"),
    ],
)
def test_a_generator_of_trials_that_outlives_its_loop_does_not_hold_up_the_end_of_the_process(
    tmp_path: Path, body: str, code: int, outcome: Outcome
) -> None:
    result = Script(tmp_path, KEPT.format(body)).run()
    assert result.returncode == code, result.stderr
    assert "Exception ignored" not in result.stderr
    assert recorded_trials(tmp_path)[0].outcome is outcome


def test_train_failed_exits_with_the_code_that_asks_for_another_launch(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        if __name__ == "__main__":
            with bso.relaunching():
                size = bso.get_batch_size()
                bso.on_train_begin()
                while not bso.training_finished:
                    bso.on_evaluate(0.1 if size == 64 else 0.95)
        """,
    )

    assert [script.run().returncode, script.run().returncode] == [75, 0]
    assert [trial.outcome for trial in recorded_trials(tmp_path)] == [Outcome.NOT_CONVERGED, Outcome.CONVERGED]


def test_a_killed_training_is_suspended_once_its_lease_has_lapsed(tmp_path: Path) -> None:
    body = """
    if __name__ == "__main__":
        from bso.domain.decide import Rules
        from bso_client.transports.embedded import EmbeddedTransport

        path = os.path.join(os.environ["BSO_STATE_DIR"], "bso.sqlite")
        bso = make(transport=EmbeddedTransport(path, rules=Rules(lease_s=float(sys.argv[1]))))
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                if len(sys.argv) > 2:
                    print("ready", flush=True)
                    signal.pause()
                trial.on_evaluate(0.95)
    """
    script = Script(tmp_path, body)
    with script.running("0.5", "wait") as process:
        process.kill()
        process.wait(PATIENCE_S)
    assert recorded_trials(tmp_path)[0].state is TrialState.RUNNING

    lapsed = recorded_trials(tmp_path)[0].lease_expires_at
    assert lapsed is not None
    eventually(lambda: datetime.now(UTC) > lapsed)
    assert script.run("600").returncode == 0
    trials = recorded_trials(tmp_path)
    assert [trial.state for trial in trials] == [TrialState.SUSPENDED, TrialState.ENDED]
    assert trials[0].recurrence_id == trials[1].recurrence_id  # the model is still due


def test_a_lease_is_renewed_while_an_epoch_takes_long(tmp_path: Path) -> None:
    body = """
    if __name__ == "__main__":
        from bso.domain.decide import Rules
        from bso_client.transports.embedded import EmbeddedTransport

        path = os.path.join(os.environ["BSO_STATE_DIR"], "bso.sqlite")
        bso = make(transport=EmbeddedTransport(path, rules=Rules(lease_s=3.0)))
        for trial in bso.trials():
            with trial:
                print("ready", flush=True)
                signal.pause()
    """
    with Script(tmp_path, body).running():
        first = recorded_trials(tmp_path)[0].lease_expires_at
        assert first is not None
        eventually(lambda: (recorded_trials(tmp_path)[0].lease_expires_at or first) > first)


def test_children_of_a_training_do_not_touch_its_connection(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        import multiprocessing

        def work(trial):
            assert trial.batch_size == 64
            try:
                trial.on_evaluate(0.5)
            except NotInThisProcess:
                sys.exit(17)

        if __name__ == "__main__":
            for trial in bso.trials():
                with trial:
                    for method in ("fork", "spawn", "forkserver"):
                        child = multiprocessing.get_context(method).Process(target=work, args=(trial,))
                        child.start()
                        child.join()
                        assert child.exitcode == 17, (method, child.exitcode)
                    pid = os.fork()
                    if pid == 0:
                        sys.exit(18)  # runs with-blocks and exit handlers of the parent's code
                    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 18
                    for _ in range(50):  # SIGTERM comes while the child is being made, too
                        pid = os.fork()
                        if pid == 0:
                            signal.pause()
                            os._exit(19)
                        os.kill(pid, signal.SIGTERM)
                        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
                    trial.on_evaluate(0.1)
                    trial.on_evaluate(0.95)
        """,
    )
    result = script.run()

    assert result.returncode == 0, result.stderr
    trials = recorded_trials(tmp_path)
    assert [(trial.outcome, trial.reports) for trial in trials] == [(Outcome.CONVERGED, 2)]


MOST_MODULES = 260
"""They are 243, most of them Python's own: it takes 0.2 s on an idle machine."""
IMPORT = """
import sys
before = len(sys.modules)
import bso_client
heavy = {"sqlalchemy", "torch", "pydantic", "aio_pika", "aiormq", "numpy", "alembic", "platformdirs",
         "typing_extensions", "importlib.metadata"} & set(sys.modules)
assert not heavy, heavy
print(len(sys.modules) - before)
"""


def test_importing_the_client_loads_little_and_nothing_heavy() -> None:
    result = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < MOST_MODULES


def test_the_end_of_a_process_does_not_wait_for_a_host_that_is_looked_up(tmp_path: Path) -> None:
    body = """
        import socket, threading

        socket.getaddrinfo = lambda *_, **__: threading.Event().wait()
        try:
            make(unreachable_timeout=0.2).get_batch_size()
        except Unreachable as error:
            print(error)
    """
    result = Script(tmp_path, body, url="amqp://nowhere:1/").run()

    assert result.returncode == 0, result.stderr
    assert "never registered" in result.stdout
    assert "the connection to the broker stands" not in result.stdout
