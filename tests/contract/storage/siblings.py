"""Jobs that inherit from one another, for the stores' tests."""

from typing import Any

from bso.domain.commands import RegisterJob, Request
from bso.domain.events import JobRegistered, JobRespecified
from bso.domain.replies import EpochJudged
from bso.service.engine import Engine
from bso.service.ports import Store
from tests.contract.storage.job_requests import SPEC, ask, begin, registration, report, request, whole_history

KNOWN, NEW = "known", "new"
EPOCHS = {32: 9, 64: 6, 128: 3}
"""To the target, by batch size; each epoch costs the same."""
BEST = 128


def like(job_id: str = NEW, name: str = KNOWN, **changes: Any) -> Request:
    """The registration of a job that inherits from another one."""
    return request(RegisterJob(spec={**SPEC, **changes}, like=name), job_id=job_id)


async def trained(engine: Engine, job_id: str = KNOWN, *, recurrences: int = 6) -> None:
    """Register a job and train it until its best batch size is known."""
    await ask(engine, registration(job_id))
    for number in range(recurrences):
        while not await converged(engine, job_id, f"night-{number}"):
            pass


async def converged(engine: Engine, job_id: str, recurrence_id: str) -> bool:
    """Train once; whether there is a model."""
    trial = await begin(engine, job_id, recurrence_id=recurrence_id)
    for epoch in range(1, EPOCHS[trial.batch_size] + 1):
        metric = 0.9 if epoch == EPOCHS[trial.batch_size] else 0.5
        [judged] = await ask(engine, report(trial, epoch, job_id=job_id, metric=metric))
        assert isinstance(judged.reply, EpochJudged)
        if judged.reply.should_stop:
            return metric == 0.9
    raise AssertionError("a trial goes on for ever")


async def inherited(store: Store, job_id: str = NEW) -> list[bool]:
    """Whether each registration in a job's log has inherited anything."""
    events = [recorded.event for recorded in await whole_history(store, job_id)]
    return [one.inherited is not None for one in events if isinstance(one, JobRegistered | JobRespecified)]
