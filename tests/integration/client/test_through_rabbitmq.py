import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bso.domain.decide import Rules
from bso.domain.trial import Outcome
from bso_client import (
    BatchSizeOptimizer,
    EnergyMethod,
    HardwareKind,
    JobSpec,
    Misconfigured,
    NotInThisProcess,
    Unreachable,
)
from bso_client.delivery.left_behind import contents
from tests.integration.client.queue_worker import QueueWorker
from tests.integration.client.scripts import Script
from tests.servers import PATIENCE_S, eventually
from tests.servers.proxy import TcpProxy
from tools.private_servers import UNMISTAKABLE, Management

SPEC = JobSpec(job_id="job", batch_sizes=[32, 64, 128], default_batch_size=64, target_metric=0.9, max_epochs=5)
OTHER_JOB = JobSpec(job_id="other", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, max_epochs=5)
HARDWARE = HardwareKind(gpu_model="test", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)
MakeOptimizer = Callable[..., BatchSizeOptimizer]


@pytest.fixture
def make_bso(tmp_path: Path) -> Iterator[MakeOptimizer]:
    made: list[BatchSizeOptimizer] = []

    def make(url: str, spec: JobSpec = SPEC, **options: Any) -> BatchSizeOptimizer:
        chosen: dict[str, Any] = {"hardware": HARDWARE, "state_dir": tmp_path / "state", "recurrence_id": "monday"}
        made.append(BatchSizeOptimizer(spec, url=url, **chosen | options))
        return made[-1]

    yield make
    for bso in made:
        bso.close(timeout=1.0)


@pytest.fixture
def worker(amqp_url: str) -> Iterator[QueueWorker]:
    with QueueWorker(amqp_url) as worker:
        yield worker


class Trainer:
    """A login of its own for trainings."""

    def __init__(self, amqp_url: str, management: Management, state_dir: Path) -> None:
        self.name = f"trainer-{amqp_url.rpartition('/')[2]}"
        self.state_dir = state_dir
        self._amqp_url, self._management = amqp_url, management
        self.url = self._with_password(f"{UNMISTAKABLE}right")

    def lose_permission(self) -> None:
        """Refuse the login from now on."""
        self._with_password(f"{UNMISTAKABLE}another")
        self._management.close_connections(self.url)

    def regain_permission(self) -> None:
        """Accept it again."""
        self._with_password(f"{UNMISTAKABLE}right")

    def _with_password(self, password: str) -> str:
        return self._management.add_user(self._amqp_url, self.name, password, configure=".*", write=".*", read=".*")


@pytest.fixture
def trainer(amqp_url: str, rabbitmq_management: Management, tmp_path: Path) -> Trainer:
    return Trainer(amqp_url, rabbitmq_management, tmp_path / "state")


def complaint(make_bso: MakeOptimizer, url: str, *, timeout_s: float, too_early: str) -> str:
    """What is said when the time is up; where that was before anything came back, twice the time is given."""
    while True:
        with pytest.raises(Unreachable) as raised:
            make_bso(url, unreachable_timeout=timeout_s).get_batch_size()
        if too_early not in str(raised.value):
            return str(raised.value)
        timeout_s *= 2


def test_the_same_loop_through_the_queue(amqp_url: str, worker: QueueWorker, make_bso: MakeOptimizer) -> None:
    bso = make_bso(amqp_url)
    for _ in range(3):
        for trial in bso.trials():
            with trial:
                while not trial.finished:
                    trial.on_evaluate(0.1 if trial.batch_size == 128 else 0.95)

    trials = worker.trials()
    assert [trial.recurrence_id for trial in trials if trial.outcome is Outcome.CONVERGED] == [
        "monday",
        "monday-2",
        "monday-3",
    ]
    assert all(trial.outcome is not None for trial in trials)


def test_a_training_goes_on_while_the_broker_is_cut_off_and_delivers_afterwards(
    amqp_url: str, worker: QueueWorker, make_bso: MakeOptimizer, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    proxy = tcp_proxy(amqp_url)
    bso = make_bso(proxy.url)
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            proxy.cut()
            trial.on_evaluate(0.2)
            trial.on_evaluate(0.3)
            assert not trial.finished
            proxy.restore()
            eventually(lambda: worker.trials()[0].reports == 3)
            trial.on_evaluate(0.95)

    eventually(lambda: worker.trials()[0].outcome is Outcome.CONVERGED)  # the client may not know yet that it is back
    assert (worker.trials()[0].reports, worker.trials()[0].epoch) == (4, 4.0)


def test_a_known_job_begins_alone_while_the_broker_is_away(
    amqp_url: str, worker: QueueWorker, make_bso: MakeOptimizer, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    proxy = tcp_proxy(amqp_url)
    first = make_bso(proxy.url)
    for trial in first.trials():
        with trial:
            trial.on_evaluate(0.95)
    proxy.cut()
    bso = make_bso(proxy.url, unreachable_timeout=0.5)
    for trial in bso.trials():
        assert (trial.batch_size, trial.trial_number) == (64, None)
        with trial:
            trial.on_evaluate(0.1)
            proxy.restore()
            eventually(lambda: len(worker.trials()) == 2 and worker.trials()[1].reports == 1)
            trial.on_evaluate(0.95)

    eventually(lambda: [trial.outcome for trial in worker.trials()] == [Outcome.CONVERGED, Outcome.CONVERGED])


def test_without_a_worker_it_says_what_to_start(amqp_url: str, make_bso: MakeOptimizer) -> None:
    said = complaint(make_bso, amqp_url, timeout_s=1.5, too_early="has not answered yet")
    assert "no worker has been started" in said


def test_a_worker_that_comes_late_is_waited_for(amqp_url: str, make_bso: MakeOptimizer, tmp_path: Path) -> None:
    body = """
    if __name__ == "__main__":
        print("ready", flush=True)
        bso.get_batch_size()
    """
    script = Script(tmp_path, body, url=amqp_url)
    with script.running() as process, QueueWorker(amqp_url) as worker:
        assert process.wait(PATIENCE_S) == 0
        assert [trial.batch_size for trial in worker.trials()] == [64]


def test_a_wrong_password_says_so(amqp_url: str, make_bso: MakeOptimizer) -> None:
    scheme, _, rest = amqp_url.partition("://")
    url = f"{scheme}://nobody:wrong@{rest.rpartition('@')[2]}"
    with pytest.raises(Misconfigured, match="refuses user 'nobody'"):
        make_bso(url, unreachable_timeout=PATIENCE_S).get_batch_size()


def test_a_login_that_is_refused_in_mid_training_is_no_outage(
    trainer: Trainer, worker: QueueWorker, make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    bso = make_bso(trainer.url)
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            trainer.lose_permission()
            trial.on_evaluate(0.2)
            assert not trial.finished
            trainer.regain_permission()
            eventually(lambda: worker.trials()[0].reports == 2)
            trial.on_evaluate(0.95)
    bso.close(timeout=PATIENCE_S)
    actions = {getattr(record, "action", "") for record in caplog.records}
    assert "optimizer_refuses" in actions
    assert "optimizer_away" not in actions
    assert worker.trials()[0].outcome is Outcome.CONVERGED
    assert contents(trainer.state_dir) == []


def test_what_a_refused_login_leaves_is_kept_for_this_login_and_delivered_by_its_next_training(
    trainer: Trainer, amqp_url: str, worker: QueueWorker, make_bso: MakeOptimizer
) -> None:
    bso = make_bso(trainer.url)
    for trial in bso.trials():
        with trial:
            trainer.lose_permission()
            trial.on_evaluate(0.95)
    bso.close(timeout=0.5)
    [kept] = contents(trainer.state_dir)
    assert (kept.destination.login, len(kept.letters)) == (trainer.name, 2)

    somebody_else = make_bso(amqp_url, OTHER_JOB)
    somebody_else.get_batch_size()
    assert len(contents(trainer.state_dir)) == 1
    trainer.regain_permission()
    after = make_bso(trainer.url)
    after.get_batch_size()
    assert contents(trainer.state_dir) == []
    assert worker.trials()[0].outcome is Outcome.CONVERGED


def test_a_wrong_virtual_host_says_so(amqp_url: str, make_bso: MakeOptimizer) -> None:
    with pytest.raises(Misconfigured, match="virtual host"):
        make_bso(amqp_url.rpartition("/")[0] + "/no-such-host", unreachable_timeout=PATIENCE_S).get_batch_size()


def test_no_broker_says_so_after_the_time_given_and_in_no_librarys_words(
    make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    said = complaint(make_bso, "amqp://guest:guest@127.0.0.1:9", timeout_s=1.0, too_early="has not answered yet")
    assert "is it running" in said
    assert {record.name.partition(".")[0] for record in caplog.records} <= {"bso", "bso_broker", "asyncio"}


def test_sigterm_is_reported_through_the_queue(amqp_url: str, worker: QueueWorker, tmp_path: Path) -> None:
    body = """
    if __name__ == "__main__":
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                print("ready", flush=True)
                signal.pause()
    """
    with Script(tmp_path, body, url=amqp_url).running() as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM

    row = worker.trials()[0]
    assert (row.outcome, row.outcome_reason) == (Outcome.INTERRUPTED, "SIGTERM")


def test_a_lease_is_renewed_through_the_queue(amqp_url: str, make_bso: MakeOptimizer) -> None:
    with QueueWorker(amqp_url, Rules(lease_s=6.0)) as worker:
        bso = make_bso(amqp_url)
        bso.get_batch_size()
        first = worker.trials()[0].lease_expires_at
        assert first is not None
        eventually(lambda: (worker.trials()[0].lease_expires_at or first) > first)
        bso.close()


def test_a_forked_child_does_not_touch_the_connection(
    amqp_url: str, worker: QueueWorker, make_bso: MakeOptimizer
) -> None:
    bso = make_bso(amqp_url)
    for trial in bso.trials():
        with trial:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    trial.on_evaluate(0.95)
                except NotInThisProcess:
                    code = 17
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
            trial.on_evaluate(0.1)
            trial.on_evaluate(0.95)

    assert (worker.trials()[0].outcome, worker.trials()[0].reports) == (Outcome.CONVERGED, 2)
