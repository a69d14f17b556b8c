"""Epoch costs that the ranks of a training probe together."""

import asyncio
import json

import pytest

from bso.domain.events import EpochCostsProbed
from bso.schema.codec import event_from
from bso.storage import open_store
from tests.training.distributed.torchrun import Launched, launch


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    return launch("probing", tmp_path_factory.mktemp("probing"))


def probed(done: Launched, job_id: str) -> list[EpochCostsProbed]:
    async def read() -> list[EpochCostsProbed]:
        store = open_store(f"sqlite:///{done.folder / 'bso.sqlite'}")
        try:
            log = [each.new for each in await store.log_page(job_id)]
            events = [event_from(each.type, json.loads(each.payload)) for each in log]
            return [each for each in events if isinstance(each, EpochCostsProbed)]
        finally:
            await store.close()

    return asyncio.run(read())


def test_ranks_probe_and_train_as_they_would_without(done: Launched) -> None:
    assert done.codes == (0,), done.printed
    assert done.of_all("probed") == done.of_all("plain")
    assert {each.batch_size for event in probed(done, "probed") for each in event.probes} == {32, 64, 128}
    assert probed(done, "plain") == []


def test_what_does_not_fit_on_one_rank_is_infeasible_for_all(done: Launched) -> None:
    assert done.of_all("short") == done.of_all("plain")
    assert done.of_all("sizes") == [[[16, 32, 64]], [[16, 32, 64]]], "each makes steps with its part of a batch"
    events = probed(done, "short")
    assert {each.batch_size for event in events for each in event.probes} == {32, 64}
    assert {size for event in events for size in event.out_of_memory} == {128}
