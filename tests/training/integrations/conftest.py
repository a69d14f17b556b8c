"""An optimizer over memory for trainings with real trainers, and small trainings that take a second."""

import os
from pathlib import Path
from typing import Any

import pytest

from bso_client import JobSpec
from tests.unit.client.doubles import job_spec
from tests.unit.client.fixtures import bso, even_steps, make_bso, monitor, no_environment, optimizer

__all__ = ["bso", "even_steps", "make_bso", "monitor", "no_environment", "optimizer"]  # fixtures are found by name

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is: so small a model gains nothing from more


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the libraries warn of among themselves is theirs."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bso_client.once.said", set())


@pytest.fixture
def usual_spec() -> JobSpec:
    return job_spec(policy="pruning_thompson", batch_sizes=[8, 16, 32], default_batch_size=16)


@pytest.fixture
def usual_options() -> dict[str, Any]:
    return {}
