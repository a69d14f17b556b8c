"""A training process of its own: registers, begins a trial, trains it, prints its number."""

import asyncio
import sys

from bso.domain.replies import EpochJudged, TrialBegun
from bso_client.transports.embedded import open_embedded
from tests.contract.storage.job_requests import beginning, registration, report


async def train(path: str, recurrence_id: str) -> int:
    """One trial, from registration to convergence."""
    handle = await open_embedded(path)
    await handle.execute([registration(early_stopping=False)])
    [begun] = await handle.execute([beginning(recurrence_id=recurrence_id)])
    assert isinstance(begun.reply, TrialBegun), begun
    for epoch in range(1, 6):
        [judged] = await handle.execute([report(begun.reply, epoch, metric=epoch * 0.19)])
        assert isinstance(judged.reply, EpochJudged), judged
    await handle.close()
    return begun.reply.trial_number


if __name__ == "__main__":
    print(asyncio.run(train(sys.argv[1], sys.argv[2])))  # noqa: T201 - this is what the test reads
