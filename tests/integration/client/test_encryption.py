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
from tools.private_servers import RabbitMQ

SPEC = JobSpec(job_id="merger-forecast", batch_sizes=[32, 64, 128], default_batch_size=64, target_metric=0.9)
HARDWARE = HardwareKind(gpu_model="test", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)
PASSWORD = "correct-horse-battery"  # noqa: S105 - of a login that lives as long as the test
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
def worker(tls_vhost: str) -> Iterator[QueueWorker]:
    with QueueWorker(tls_vhost) as worker:
        yield worker


@pytest.fixture
def trusted(authority: Authority, tmp_path: Path) -> Path:
    """The file by which a training knows the authority."""
    return Path(shutil.copy(authority.ca, tmp_path / "trusted.pem"))


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
    tls_rabbitmq: RabbitMQ,
    authority: Authority,
    tls_vhost: str,
    worker: QueueWorker,
    make_bso: MakeOptimizer,
    scheme: str,
) -> None:
    login = f"trainer-{tls_vhost.rpartition('/')[2]}"
    own = tls_rabbitmq.management.add_user(tls_vhost, login, PASSWORD, configure=".*", write=".*", read=".*")
    url = tls_rabbitmq.secured(own, tls_ca=authority.ca) if scheme == "amqps" else own
    recording = Recording()
    with TcpProxy(url.replace("localhost", "127.0.0.1"), watch=recording.watch) as proxy:
        bso = make_bso(proxy.url.replace("127.0.0.1", "localhost"))
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                trial.on_evaluate(0.95)
        bso.close(timeout=PATIENCE_S)
    (trial,) = worker.trials(str(SPEC.job_id))
    assert (trial.outcome, trial.reports) == (Outcome.CONVERGED, 2)
    for secret in (PASSWORD, login, str(SPEC.job_id), trial.trial_id):
        assert recording.holds(secret) == (scheme == "amqp"), secret


def test_a_broker_that_cannot_be_verified_is_an_error_at_the_start(
    tls_rabbitmq: RabbitMQ, tls_vhost: str, make_bso: MakeOptimizer
) -> None:
    bso = make_bso(tls_rabbitmq.secured(tls_vhost), unreachable_timeout=PATIENCE_S)
    with pytest.raises(TlsFailed, match="does not know the authority that issued it.*tls_ca=FILE"):
        bso.get_batch_size()


def test_an_option_that_is_unknown_is_an_error_at_the_start(
    tls_rabbitmq: RabbitMQ, authority: Authority, tls_vhost: str, make_bso: MakeOptimizer
) -> None:
    bso = make_bso(tls_rabbitmq.secured(tls_vhost, cafile=authority.ca), unreachable_timeout=PATIENCE_S)
    with pytest.raises(InvalidBrokerUrl, match=r"unknown option 'cafile'.*tls_ca"):
        bso.get_batch_size()


def test_a_known_job_trains_alone_and_says_why_where_the_broker_cannot_be_verified(
    tls_rabbitmq: RabbitMQ,
    authority: Authority,
    trusted: Path,
    tls_vhost: str,
    worker: QueueWorker,
    make_bso: MakeOptimizer,
    state_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = tls_rabbitmq.secured(tls_vhost, tls_ca=trusted)
    train(make_bso(url))
    trusted.write_text("nothing")
    train(make_bso(url))
    (alone,) = [record for record in caplog.records if getattr(record, "action", "") == "optimizer_refuses"]
    assert f"tls_ca={trusted} holds no certificate" in alone.getMessage()
    assert contents(state_dir)
    shutil.copy(authority.ca, trusted)
    train(make_bso(url))
    assert contents(state_dir) == []
    trials = worker.trials(str(SPEC.job_id))
    assert [(trial.outcome, trial.reports) for trial in trials] == [(Outcome.CONVERGED, 2)] * 3


def train(bso: BatchSizeOptimizer) -> None:
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            trial.on_evaluate(0.95)
    bso.close(timeout=1.0)


@pytest.mark.parametrize("fault", ["an authority that it does not know", "a file that holds no certificate"])
def test_a_certificate_that_goes_wrong_in_mid_training_ends_nothing_and_loses_nothing(
    tls_rabbitmq: RabbitMQ,
    authority: Authority,
    trusted: Path,
    tls_vhost: str,
    worker: QueueWorker,
    make_bso: MakeOptimizer,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    fault: str,
) -> None:
    bso = make_bso(tls_rabbitmq.secured(tls_vhost, tls_ca=trusted))
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            stranger = tmp_path / "stranger"
            stranger.mkdir()
            trusted.write_text(Authority(stranger).ca.read_text() if "authority" in fault else "nothing")
            tls_rabbitmq.management.close_connections(tls_vhost)
            trial.on_evaluate(0.2)
            assert not trial.finished
            shutil.copy(authority.ca, trusted)
            eventually(lambda: worker.trials(str(SPEC.job_id))[0].reports == 2)
            trial.on_evaluate(0.95)
    bso.close(timeout=PATIENCE_S)
    warnings = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "optimizer_refuses"]
    reason = "does not know the authority" if "authority" in fault else "holds no certificate"
    assert any(reason in warning for warning in warnings), warnings
    assert worker.trials(str(SPEC.job_id))[0].outcome is Outcome.CONVERGED


def test_a_plain_connection_beyond_this_machine_is_a_line_for_debugging(
    tls_vhost: str, worker: QueueWorker, make_bso: MakeOptimizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bso")
    train(make_bso(tls_vhost))
    assert "not_encrypted" not in actions(caplog)
    train(make_bso(tls_vhost.replace("127.0.0.1", "127.1")))  # the same machine, by a name that does not say so
    (line,) = [record for record in caplog.records if getattr(record, "action", "") == "not_encrypted"]
    assert line.levelno == logging.DEBUG


def actions(caplog: pytest.LogCaptureFixture) -> set[str]:
    return {getattr(record, "action", "") for record in caplog.records}
