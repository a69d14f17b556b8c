"""What a policy has to return for a version that takes something over."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from bso.domain.events import JobRespecified
from bso.domain.job import JobVersion
from bso.domain.job_spec import JobSpec
from bso.domain.policy import Inherited
from bso.policies.testing import RecurringJob
from bso.schema.codec import decode_event, encode_event, published
from tests.fakes.policies import installed
from tests.unit.policies.broken_policies import Remembered, Sound


class Heir(Sound):
    """Remembers something of a version, and takes over what it remembers of hardware kinds alone."""

    name = "heir"
    version_memory = Remembered
    hardware_memory = Remembered

    @override
    def inherit(self, source: JobVersion, spec: JobSpec, *, is_sibling: bool) -> Inherited | None:
        return Inherited(on_hardware=dict.fromkeys(source.knowledge, Remembered(number=1.0)))


POLICY = Heir()


@pytest.fixture(autouse=True)
def _theirs(tmp_path: Path) -> Iterator[None]:
    with installed(tmp_path / "site", heir=f"{__name__}:POLICY"):
        yield


def test_what_is_inherited_may_leave_out_the_memory_of_the_version() -> None:
    async def inherit() -> list[object]:
        job = RecurringJob(policy="heir")
        await job.register()
        await job.recur(1)
        await job.register(target_metric=0.8)
        await job.recur(2)
        for recorded in await job.log():
            assert decode_event(encode_event(recorded)) == published(recorded)
        return [recorded.event for recorded in await job.log()]

    (begun,) = [event for event in asyncio.run(inherit()) if isinstance(event, JobRespecified)]
    assert begun.inherited is not None
    assert begun.inherited.memories == {}
    assert [known.memories for known in begun.inherited.knowledge.values()] == [{"heir": Remembered(number=1.0)}]
