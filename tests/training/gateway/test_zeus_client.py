"""Zeus' own client, unmodified, in trainings of their own on a GPU that is not there."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bso.domain.trial import Outcome, Trial, TrialState
from bso.storage import open_store
from tests.fakes.gpus import FakeGpus, with_cuda
from tests.integration.gateway.conftest import Gateway, StartGateway, start_gateway
from tests.servers import PATIENCE_S

__all__ = ["start_gateway"]  # a fixture

SCRIPT = Path(__file__).with_name("zeus_training.py")


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    """One GPU."""
    gpus = FakeGpus(tmp_path / "gpus.json")
    gpus.add()
    return gpus


@pytest.fixture
def server(start_gateway: StartGateway) -> Gateway:
    """A gateway over a file of its own."""
    return start_gateway()


def trained(gateway: Gateway, gpus: FakeGpus, end: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BSO_", "PYTHON"))}
    command: list[str | Path] = [sys.executable, SCRIPT, f"http://127.0.0.1:{gateway.port}", end]
    return subprocess.run(
        command, env=environ | with_cuda(gpus), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def trials(folder: Path) -> list[Trial]:
    async def read() -> list[Trial]:
        store = open_store(f"sqlite:///{folder / 'bso.sqlite'}")
        try:
            return list(await store.trials("mnist-1"))
        finally:
            await store.close()

    return asyncio.run(read())


def test_nights_of_trainings(server: Gateway, gpus: FakeGpus, tmp_path: Path) -> None:
    for _night in range(3):
        done = trained(server, gpus, "converges")
        while done.returncode == 1 and "Please re-launch the training" in done.stderr:  # as its users do
            done = trained(server, gpus, "converges")
        assert done.returncode == 0, done.stderr
        assert "finished: True" in done.stdout
    rows = trials(tmp_path)
    assert [row.outcome for row in rows].count(Outcome.CONVERGED) == 3
    assert {(row.hardware.gpu_model, row.hardware.max_power_w) for row in rows} == {("NVIDIA H100 80GB HBM3", 700.0)}


def test_the_example(server: Gateway, gpus: FakeGpus, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BSO_", "PYTHON"))}
    environ |= with_cuda(gpus) | {"ZEUS_SERVER_URL": f"http://127.0.0.1:{server.port}"}
    example = Path(__file__).parents[3] / "examples" / "zeus_client" / "train.py"
    done = subprocess.run(
        [sys.executable, example], env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "batch size 64 reached 0.9" in done.stdout


def test_a_batch_size_that_fails_is_followed_by_another(server: Gateway, gpus: FakeGpus, tmp_path: Path) -> None:
    failed = trained(server, gpus, "fails")
    assert failed.returncode == 1
    assert "ZeusBSOTrainFailError" in failed.stderr
    assert "Please re-launch the training" in failed.stderr
    assert trained(server, gpus, "converges").returncode == 0
    first, second = trials(tmp_path)
    assert (first.outcome, second.outcome) == (Outcome.NOT_CONVERGED, Outcome.CONVERGED)
    assert first.recurrence_id == second.recurrence_id
    assert first.batch_size != second.batch_size


ENDS = {
    "raises": (1, Outcome.INTERRUPTED),
    "nothing": (0, Outcome.NOT_CONVERGED),
    "killed": (-signal.SIGTERM, None),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_training_that_ends_otherwise(server: Gateway, gpus: FakeGpus, tmp_path: Path, end: str) -> None:
    done = trained(server, gpus, end)
    [trial] = trials(tmp_path)
    assert (done.returncode, trial.outcome) == ENDS[end], done.stderr
    if end == "killed":  # no handler runs: the lease decides
        assert trial.state is TrialState.RUNNING
        assert trial.lease_expires_at is not None
    assert trained(server, gpus, "converges").returncode == 0
