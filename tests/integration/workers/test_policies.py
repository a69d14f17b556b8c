"""Jobs under a policy of somebody else's distribution, through the queue, where it is installed and where it is not."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bso.domain.commands import DescribeJob, RegisterJob
from bso.domain.replies import JobDescription, Problem
from bso.service.memory import InMemoryStore
from tests.fakes.memory_broker import MemoryBroker
from tests.fakes.policies import installed
from tests.integration.workers.fixtures import RunWorker
from tests.integration.workers.recurrences import SPEC, Queue, history, recur, register

DISTRIBUTION = Path(__file__).parents[3] / "examples" / "policy"


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Installs examples/policy; it is gone again after the test."""
    with ExitStack() as stack:

        def lay_out() -> None:
            shutil.copytree(DISTRIBUTION / "bso_greedy", tmp_path / "site" / "bso_greedy")
            stack.enter_context(installed(tmp_path / "site", greedy="bso_greedy:POLICY"))

        yield lay_out
    sys.modules.pop("bso_greedy", None)


async def test_a_job_learns_by_a_policy_that_is_installed(
    install: Callable[[], None], memory_broker: MemoryBroker, memory_store: InMemoryStore, run_worker: RunWorker
) -> None:
    install()
    async with run_worker(memory_broker, memory_store), Queue(broker=memory_broker) as ask:
        await register(ask, "theirs", policy="greedy")
        for number in range(6):
            await recur(ask, "theirs", f"night-{number}")
        described = await ask("theirs", DescribeJob())
    assert isinstance(described, JobDescription)
    (kind,) = described.kinds
    assert kind.about_costs == "the mean cost of all trials that converged"
    assert any(arm.posterior_mean is not None for arm in kind.arms)
    happened = [type(stored.recorded.event).__name__ for stored in await history(memory_store, "theirs")]
    assert "LeaderChanged" in happened


async def test_a_worker_that_lacks_the_policy_parks_the_job_and_goes_on_with_it_when_it_is_there(
    install: Callable[[], None], memory_broker: MemoryBroker, memory_store: InMemoryStore, run_worker: RunWorker
) -> None:
    async with run_worker(memory_broker, memory_store), Queue(broker=memory_broker) as ask:
        refused = await ask("theirs", RegisterJob(spec={**SPEC, "policy": "greedy"}))
        assert isinstance(refused, Problem)
        assert refused.type == "job_in_trouble"
        assert "policy 'greedy' is not installed here, only curve, pruning_thompson" in refused.detail
        assert refused.retry_after_s
        (parked,) = await memory_store.parked_jobs.all()
        assert parked.job_id == "theirs"
        assert "policy 'greedy' is not installed here, only curve, pruning_thompson" in parked.reason
        await register(ask, "ours")
        install()
        ask.is_patient = True
        await register(ask, "theirs", policy="greedy")
        assert not await memory_store.parked_jobs.all()
