"""Workers over TLS: what is wrong is waited for and named, and certificates are renewed under them."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from bso.storage import SqlStore
from bso_client import BatchSizeOptimizer, EnergyMethod, HardwareKind, JobSpec
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.recurrences import audit
from tests.servers import PATIENCE_S, eventually_async
from tests.servers.certificates import Authority
from tools.private_servers import RabbitMQ

SPEC = JobSpec(job_id="renewed", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, max_epochs=9)
HARDWARE = HardwareKind(gpu_model="test", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)


@pytest.fixture
def trusted(authority: Authority, tmp_path: Path) -> Path:
    """The file by which worker and training know the authority."""
    return Path(shutil.copy(authority.ca, tmp_path / "trusted.pem"))


WRONG: dict[str, tuple[Callable[[RabbitMQ, str, Path], str], str]] = {
    "unknown authority": (lambda server, url, _: server.secured(url), "does not know the authority"),
    "another host": (
        lambda server, url, ca: server.secured(url, host="127.0.0.1", tls_ca=ca),
        "must name the server as its certificate does",
    ),
    "missing file": (lambda server, url, ca: server.secured(url, tls_ca=f"{ca}.old"), "cannot be read"),
    "no TLS there": (lambda _, url, ca: f"{url.replace('amqp', 'amqps', 1)}?tls_ca={ca}", "does the server speak TLS"),
    "TLS there": (lambda server, url, _: url.replace(str(server.port), str(server.tls_port)), "write amqps://"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_worker_that_cannot_have_tls_with_its_broker_waits_and_says_why(
    tls_rabbitmq: RabbitMQ, authority: Authority, tls_vhost: str, migrated_url: str, start_worker: StartWorker, fault: str
) -> None:
    url_of, words = WRONG[fault]
    url = url_of(tls_rabbitmq, tls_vhost, authority.ca)
    worker = start_worker(amqp_url=url, database_url=migrated_url).started()
    worker.until(lambda: words in worker.reasons().get("broker", ""))
    assert worker.page("livez")[0] == 200
    assert any(words in line["message"] for line in worker.logged("broker_unreachable"))
    assert "ready" not in {line["action"] for line in worker.lines()}
    assert "Traceback" not in worker.text()


@pytest.mark.parametrize("option", ["cafile=ca.pem", "tls=perhaps"])
def test_a_worker_with_a_wrong_option_says_so_and_ends(
    tls_rabbitmq: RabbitMQ, tls_vhost: str, migrated_url: str, start_worker: StartWorker, option: str
) -> None:
    worker = start_worker(amqp_url=f"{tls_rabbitmq.secured(tls_vhost)}?{option}", database_url=migrated_url)
    assert worker.wait() == 2
    (line,) = worker.lines("misconfigured")
    assert option.partition("=")[0] in line["reason"]


async def test_certificate_and_authority_are_renewed_under_a_worker_and_a_training_and_nothing_is_lost(
    tls_rabbitmq: RabbitMQ,
    authority: Authority,
    tls_vhost: str,
    store: SqlStore,
    migrated_url: str,
    start_worker: StartWorker,
    trusted: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = tls_rabbitmq.secured(tls_vhost, tls_ca=trusted)
    worker = start_worker(amqp_url=url, database_url=migrated_url).ready()
    bso = BatchSizeOptimizer(SPEC, url=url, hardware=HARDWARE, state_dir=tmp_path / "state")

    def renew() -> None:
        authority.renew()
        authority.issue("server", "localhost")
        tls_rabbitmq.read_certificates()
        tls_rabbitmq.management.close_connections(tls_vhost)

    def train() -> None:
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                renew()
                worker.until(lambda: "does not know the authority" in worker.reasons().get("broker", ""))
                trial.on_evaluate(0.2)
                trial.on_evaluate(0.3)
                assert not trial.finished
                shutil.copy(authority.ca, trusted)
                worker.ready()
                trial.on_evaluate(0.4)
                trial.on_evaluate(0.95)
        bso.close(timeout=PATIENCE_S)

    await asyncio.to_thread(train)
    await eventually_async(lambda: _outcomes(store), what="a trial that has ended")
    (trial,) = await store.trials(str(SPEC.job_id))
    assert (trial.outcome, trial.reports, trial.epoch) == (Outcome.CONVERGED, 5, 5.0)
    await audit(store, str(SPEC.job_id))
    refusals = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "optimizer_refuses"]
    assert any("does not know the authority" in words for words in refusals), refusals


async def _outcomes(store: SqlStore) -> list[Outcome]:
    return [trial.outcome for trial in await store.trials(str(SPEC.job_id)) if trial.outcome is not None]


def test_a_worker_warns_once_of_a_plain_connection_beyond_this_machine(
    amqp_url: str, migrated_url: str, start_worker: StartWorker
) -> None:
    here = start_worker(amqp_url=amqp_url, database_url=migrated_url).ready()
    assert not here.lines("not_encrypted")
    # The same machine, by a name that does not say so.
    beyond = start_worker(amqp_url=amqp_url.replace("127.0.0.1", "127.1"), database_url=migrated_url).ready()
    (line,) = beyond.lines("not_encrypted")
    assert line["level"] == "warning"
    assert "amqps://" in line["message"]
