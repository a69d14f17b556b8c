"""Workers over TLS: what is wrong is waited for and named, and certificates are renewed under them."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from bso.storage import SqlStore
from bso_client import BatchSizeOptimizer, EnergyMethod, HardwareKind, JobSpec
from tests.integration.workers.fixtures import StartWorker
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import audit
from tests.servers import PATIENCE_S, TcpProxy, eventually_async
from tests.servers.tls_broker import TlsBroker

SPEC = JobSpec(job_id="renewed", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, max_epochs=9)
HARDWARE = HardwareKind(gpu_model="test", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)


WRONG: dict[str, tuple[Callable[[TlsBroker], str], str]] = {
    "unknown authority": (lambda broker: broker.url_with(), "does not know the authority"),
    "another host": (
        lambda broker: broker.url_with(host="127.0.0.1", tls_ca=broker.authority.ca),
        "must name the server as its certificate does",
    ),
    "missing file": (lambda broker: broker.url_with(tls_ca="/nowhere/ca.pem"), "cannot be read"),
    "no TLS there": (lambda broker: broker.tls_at_the_plain_port, "does the server speak TLS"),
    "TLS there": (lambda broker: broker.no_tls_at_the_tls_port, "write amqps://"),
}


@pytest.mark.parametrize(
    "fault", ["unknown authority", *(pytest.param(each, marks=pytest.mark.slow) for each in [*WRONG][1:])]
)
def test_a_worker_that_cannot_have_tls_with_its_broker_waits_and_says_why(
    tls_broker: TlsBroker, migrated_url: str, start_worker: StartWorker, fault: str
) -> None:
    url_of, words = WRONG[fault]
    worker = start_worker(amqp_url=url_of(tls_broker), database_url=migrated_url).started()
    worker.until(lambda: words in worker.reasons().get("broker", ""))
    assert worker.page("livez")[0] == 200
    assert any(words in line["message"] for line in worker.logged("broker_unreachable"))
    assert "ready" not in {line["action"] for line in worker.lines()}
    assert "Traceback" not in worker.text()


def test_a_worker_that_has_begun_without_its_file_goes_on_when_it_is_there(
    tls_broker: TlsBroker, migrated_url: str, start_worker: StartWorker, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    worker = start_worker(amqp_url=tls_broker.url_with(tls_ca=trusted), database_url=migrated_url).started()
    worker.until(lambda: f"tls_ca={trusted}" in worker.reasons().get("broker", ""))
    shutil.copy(tls_broker.authority.ca, trusted)
    worker.ready()


@pytest.mark.parametrize("option", ["cafile", "tls"])
def test_a_worker_with_a_wrong_option_says_so_and_ends(
    tls_broker: TlsBroker, migrated_url: str, start_worker: StartWorker, option: str
) -> None:
    worker = start_worker(amqp_url=tls_broker.url_with(**{option: "perhaps"}), database_url=migrated_url)
    assert worker.wait() == 2
    (line,) = worker.lines("misconfigured")
    assert option in line["reason"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Something that keeps a worker and a training from their broker, after some reports and before others."""

    begin: Callable[[], object]
    reason: str
    end: Callable[[], object]


async def train_through(
    interruption: Interruption, url: str, worker: WorkerProcess, store: SqlStore, state_dir: Path
) -> None:
    """Train; the worker has to name the reason and to come back, and no report may be lost."""
    bso = BatchSizeOptimizer(SPEC, url=url, hardware=HARDWARE, state_dir=state_dir)

    def train() -> None:
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                interruption.begin()
                worker.until(lambda: interruption.reason in worker.reasons().get("broker", ""))
                trial.on_evaluate(0.2)
                trial.on_evaluate(0.3)
                assert not trial.finished
                interruption.end()
                worker.ready()
                trial.on_evaluate(0.4)
                trial.on_evaluate(0.95)
        bso.close(timeout=PATIENCE_S)

    await asyncio.to_thread(train)
    await eventually_async(lambda: _outcomes(store), what="a trial that has ended")
    (trial,) = await store.trials(str(SPEC.job_id))
    assert (trial.outcome, trial.reports, trial.epoch) == (Outcome.CONVERGED, 5, 5.0)
    await audit(store, str(SPEC.job_id))


async def _outcomes(store: SqlStore) -> list[Outcome]:
    return [trial.outcome for trial in await store.trials(str(SPEC.job_id)) if trial.outcome is not None]


def warnings(caplog: pytest.LogCaptureFixture, action: str) -> str:
    """What the training has said about its optimizer."""
    return " ".join(record.getMessage() for record in caplog.records if getattr(record, "action", "") == action)


@pytest.mark.slow
async def test_certificate_and_authority_are_renewed_under_a_worker_and_a_training_and_nothing_is_lost(
    tls_broker: TlsBroker, store: SqlStore, start_worker: StartWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusted = tmp_path / "trusted.pem"

    def trust() -> None:
        shutil.copy(tls_broker.authority.ca, trusted)

    def renew_the_brokers() -> None:
        tls_broker.authority.renew()
        tls_broker.renew()
        tls_broker.close_connections()

    trust()
    url = tls_broker.url_with(tls_ca=trusted)
    worker = start_worker(amqp_url=url).ready()
    renewal = Interruption(begin=renew_the_brokers, reason="does not know the authority", end=trust)
    await train_through(renewal, url, worker, store, tmp_path / "state")
    assert renewal.reason in warnings(caplog, "optimizer_refuses")


@pytest.mark.slow
async def test_a_broker_that_hangs_in_the_handshake_is_waited_for_by_a_worker_and_a_training_and_nothing_is_lost(
    tls_broker: TlsBroker, store: SqlStore, start_worker: StartWorker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with TcpProxy(tls_broker.url.replace("localhost", "127.0.0.1")) as proxy:
        url = proxy.url.replace("127.0.0.1", "localhost")
        worker = start_worker(amqp_url=url).ready()

        def swallow() -> None:
            proxy.stall_replies()
            proxy.drop()

        hang = Interruption(begin=swallow, reason="did not answer within 10 s", end=proxy.restore)
        await train_through(hang, url, worker, store, tmp_path / "state")
    assert hang.reason in warnings(caplog, "optimizer_away")


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
