"""Trainings over TLS: what the network sees of them, and what wrong certificates do to them."""

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bso.domain.trial import Outcome
from bso.tls import TlsFailed
from bso_broker.errors import InvalidBrokerUrl
from bso_client import BatchSizeOptimizer, EnergyMethod, HardwareKind, JobSpec
from bso_client.delivery.left_behind import contents
from tests.integration.client.queue_worker import QueueWorker
from tests.servers import PATIENCE_S, TcpProxy, eventually
from tests.servers.certificates import Authority
from tests.servers.tls_broker import TlsBroker

JOB = "merger-forecast"
SPEC = JobSpec(  # no training is stopped because this machine is slow
    job_id=JOB, batch_sizes=[32, 64, 128], default_batch_size=64, target_metric=0.9, beta_knob=None
)
HARDWARE = HardwareKind(gpu_model="test", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)
PASSWORD = "correct-horse-battery"
MakeOptimizer = Callable[..., BatchSizeOptimizer]


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def make_bso(state_dir: Path) -> Iterator[MakeOptimizer]:
    made: list[BatchSizeOptimizer] = []

    def make(url: str, **options: Any) -> BatchSizeOptimizer:
        made.append(BatchSizeOptimizer(SPEC, url=url, hardware=HARDWARE, state_dir=state_dir, **options))
        return made[-1]

    yield make
    for bso in made:
        bso.close(timeout=1.0)


@pytest.fixture
def worker(tls_broker: TlsBroker) -> Iterator[QueueWorker]:
    with QueueWorker(tls_broker.plain_url) as worker:
        yield worker


class Trust:
    """The file by which a training knows the authority of its broker; it may be wrong for a while."""

    def __init__(self, broker: TlsBroker, folder: Path) -> None:
        self.file = folder / "trusted.pem"
        self.url = broker.url_with(tls_ca=self.file)
        self._broker, self._folder = broker, folder
        self.repair()

    def repair(self) -> None:
        shutil.copy(self._broker.authority.ca, self.file)

    def name_another_authority(self) -> None:
        stranger = self._folder / "stranger"
        stranger.mkdir()
        shutil.copy(Authority(stranger).ca, self.file)

    def damage(self) -> None:
        self.file.write_text("nothing")


@pytest.fixture
def trust(tls_broker: TlsBroker, tmp_path: Path) -> Trust:
    return Trust(tls_broker, tmp_path)


class Recording:
    """Everything that goes over a wire, in both directions."""

    def __init__(self) -> None:
        self._pieces: list[list[bytes]] = []

    def watch(self, _is_request: bool) -> Callable[[bytes], None]:
        self._pieces.append([])
        return self._pieces[-1].append

    def holds(self, words: str) -> bool:
        return any(words.encode() in b"".join(pieces) for pieces in self._pieces)


@pytest.mark.parametrize("scheme", ["amqps", "amqp"])
def test_who_reads_the_network_reads_all_of_amqp_and_nothing_of_amqps(
    tls_broker: TlsBroker, worker: QueueWorker, make_bso: MakeOptimizer, scheme: str
) -> None:
    login = f"trainer-{tls_broker.plain_url.rpartition('/')[2]}"
    management = tls_broker.server.management
    own = management.add_user(tls_broker.plain_url, login, PASSWORD, configure=".*", write=".*", read=".*")
    url = tls_broker.server.secured(own, tls_ca=tls_broker.authority.ca) if scheme == "amqps" else own
    recording = Recording()
    with TcpProxy(url.replace("localhost", "127.0.0.1"), watch=recording.watch) as proxy:
        train(make_bso(proxy.url.replace("127.0.0.1", "localhost")), timeout=PATIENCE_S)
    (trial,) = worker.trials(JOB)
    assert (trial.outcome, trial.reports) == (Outcome.CONVERGED, 2)
    for secret in (PASSWORD, login, JOB, trial.trial_id):
        assert recording.holds(secret) == (scheme == "amqp"), secret


def test_a_broker_that_cannot_be_verified_is_an_error_at_the_start(
    tls_broker: TlsBroker, make_bso: MakeOptimizer
) -> None:
    bso = make_bso(tls_broker.url_with(), unreachable_timeout=PATIENCE_S)
    with pytest.raises(TlsFailed, match=r"does not know the authority that issued it.*tls_ca=FILE"):
        bso.get_batch_size()


def test_an_option_that_is_unknown_is_an_error_at_the_start(tls_broker: TlsBroker, make_bso: MakeOptimizer) -> None:
    bso = make_bso(tls_broker.url_with(cafile=tls_broker.authority.ca), unreachable_timeout=PATIENCE_S)
    with pytest.raises(InvalidBrokerUrl, match=r"unknown option 'cafile'.*tls_ca"):
        bso.get_batch_size()


def test_a_known_job_trains_alone_and_says_why_where_the_broker_cannot_be_verified(
    trust: Trust, worker: QueueWorker, make_bso: MakeOptimizer, state_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(make_bso(trust.url))
    trust.damage()
    train(make_bso(trust.url))
    (alone,) = said(caplog, "optimizer_refuses")
    assert f"tls_ca={trust.file} holds no certificate" in alone.getMessage()
    assert contents(state_dir)
    trust.repair()
    train(make_bso(trust.url))
    assert contents(state_dir) == []
    assert [(trial.outcome, trial.reports) for trial in worker.trials(JOB)] == [(Outcome.CONVERGED, 2)] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "reason"),
    [(Trust.name_another_authority, "does not know the authority"), (Trust.damage, "holds no certificate")],
)
def test_a_certificate_that_goes_wrong_in_mid_training_ends_nothing_and_loses_nothing(  # noqa: PLR0917  fixtures
    tls_broker: TlsBroker,
    trust: Trust,
    worker: QueueWorker,
    make_bso: MakeOptimizer,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Trust], None],
    reason: str,
) -> None:
    bso = make_bso(trust.url)
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            fault(trust)
            tls_broker.close_connections()
            trial.on_evaluate(0.2)
            assert not trial.finished
            trust.repair()
            eventually(lambda: worker.trials(JOB)[0].reports == 2)
            trial.on_evaluate(0.95)
    bso.close(timeout=PATIENCE_S)
    warnings = [record.getMessage() for record in said(caplog, "optimizer_refuses")]
    assert any(reason in warning for warning in warnings), warnings
    assert worker.trials(JOB)[0].outcome is Outcome.CONVERGED


def test_a_plain_connection_beyond_this_machine_is_a_line_for_debugging(
    tls_broker: TlsBroker, worker: QueueWorker, make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bso")
    train(make_bso(tls_broker.plain_url))
    assert not said(caplog, "not_encrypted")
    train(make_bso(tls_broker.plain_url.replace("127.0.0.1", "127.1")))  # this machine, by a name that does not say so
    (line,) = said(caplog, "not_encrypted")
    assert line.levelno == logging.DEBUG


def train(bso: BatchSizeOptimizer, *, timeout: float = 1.0) -> None:
    """One recurrence, which the first trial ends; ``timeout`` for what is left to deliver."""
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            trial.on_evaluate(0.95)
    bso.close(timeout=timeout)


def said(caplog: pytest.LogCaptureFixture, action: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == action]
