"""Optimizers within reach of a test, in an environment that says nothing of them."""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bso_client import BatchSizeOptimizer, JobSpec
from bso_client.delivery.left_behind import contents
from bso_client.prober import Prober
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, ScriptedMonitor, job_spec

__all__ = [
    "MakeOptimizer",
    "bso",
    "even_steps",
    "has_delivered",
    "make_bso",
    "monitor",
    "no_environment",
    "optimizer",
    "usual_options",
    "usual_spec",
]

URL = "amqp://trainer@optimizer"  # what leads there in the tests is their own transport
MakeOptimizer = Callable[..., BatchSizeOptimizer]


@pytest.fixture
def optimizer() -> ReachableOptimizer:
    return ReachableOptimizer()


@pytest.fixture
def monitor() -> ScriptedMonitor:
    return ScriptedMonitor()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("BSO_URL", "BSO_JOB_ID", "BSO_RECURRENCE_ID", "WORLD_SIZE", "RANK", "SLURM_JOB_ID", "PBS_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BSO_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of a probe takes 0.1 ms by the clock that measures it, however busy the machine is."""
    clock = itertools.count(0.0, 1e-4).__next__
    monkeypatch.setattr("bso_client.session.Prober", functools.partial(Prober, clock=clock))


@pytest.fixture
def has_delivered(no_environment: None, tmp_path: Path) -> Callable[[], bool]:
    """Whether nothing that was kept waits for the optimizer any more: the next report waits for its judgement.

    That the optimizer has a command comes earlier: the client does not know of the answer yet.
    """
    return lambda: not any(found.letters for found in contents(tmp_path / "state"))


@pytest.fixture
def usual_spec() -> JobSpec:
    """The job of a test that names none."""
    return job_spec()


@pytest.fixture
def usual_options() -> dict[str, Any]:
    """What else optimizers are made with, unless the test says otherwise."""
    return {"unreachable_timeout": 60.0}


@pytest.fixture
def make_bso(
    optimizer: ReachableOptimizer, monitor: ScriptedMonitor, usual_spec: JobSpec, usual_options: dict[str, Any]
) -> Iterator[MakeOptimizer]:
    made: list[BatchSizeOptimizer] = []

    def make(spec: JobSpec | None = None, **options: Any) -> BatchSizeOptimizer:
        chosen: dict[str, Any] = {"transport": optimizer, "url": URL, "monitor": monitor, "hardware": HARDWARE}
        made.append(BatchSizeOptimizer(spec or usual_spec, **chosen | usual_options | options))
        return made[-1]

    yield make
    for bso in made:
        bso.close(timeout=0.2)


@pytest.fixture
def bso(make_bso: MakeOptimizer) -> BatchSizeOptimizer:
    return make_bso()
