"""Requests of trainings under ids of their own, and what stores have of what came of them."""

import random
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bso.domain.commands import (
    BeginTrial,
    Command,
    FinishTrial,
    RegisterJob,
    ReportEpoch,
    Request,
)
from bso.domain.evolve import fold
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.job import Job
from bso.domain.log import RecordedEvent
from bso.domain.replies import EpochJudged, Reply, TrialBegun
from bso.domain.trial import Outcome, Trial
from bso.replay.fold import Folding
from bso.schema.codec import dump
from bso.service.answers import Answer
from bso.service.engine import Engine
from bso.service.ports import Store
from bso.service.serialization import read_snapshot

HARDWARE = HardwareKind(gpu_model="A40", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
SPEC = {"batch_sizes": [32, 64, 128], "default_batch_size": 64, "target_metric": 0.9, "max_epochs": 20, "mab_seed": 7}
JOB = "mnist-nightly"


def request(command: Command, *, job_id: str = JOB, command_id: str | None = None, user: str | None = None) -> Request:
    """A command with an address; its id is new if none is given."""
    return Request(command_id=command_id or str(uuid.uuid4()), job_id=job_id, command=command, user=user)


def registration(job_id: str = JOB, **changes: Any) -> Request:
    """The registration of a job."""
    return request(RegisterJob(spec={**SPEC, **changes}), job_id=job_id)


def beginning(job_id: str = JOB, **fields: Any) -> Request:
    """The beginning of a trial."""
    return request(BeginTrial(**{"hardware": HARDWARE, **fields}), job_id=job_id)


def report(trial: TrialBegun, epoch: float, *, job_id: str = JOB, **fields: Any) -> Request:
    """A report after an epoch that took 10 s and 1000 J."""
    numbers = {"epoch": float(epoch), "time_s": 10.0 * epoch, "energy_j": 1000.0 * epoch, "metric": 0.5, **fields}
    return request(ReportEpoch(trial_number=trial.trial_number, trial_id=trial.trial_id, **numbers), job_id=job_id)


def finish(trial: TrialBegun, outcome: Outcome, reason: str = "", *, job_id: str = JOB, **fields: Any) -> Request:
    """The end of a training, as it tells it."""
    return request(
        FinishTrial(trial_number=trial.trial_number, trial_id=trial.trial_id, outcome=outcome, reason=reason, **fields),
        job_id=job_id,
    )


async def ask(engine: Engine, *requests: Request) -> list[Answer]:
    """Execute requests as one batch; none of them may be poison."""
    answers = await engine.execute(requests)
    assert [answer.poison for answer in answers if answer.poison] == []
    return answers


async def begin(engine: Engine, job_id: str = JOB, **fields: Any) -> TrialBegun:
    """Begin a trial."""
    [answer] = await ask(engine, beginning(job_id, **fields))
    assert isinstance(answer.reply, TrialBegun), answer.reply
    return answer.reply


@dataclass(kw_only=True)
class Campaign:
    """Many recurrences of one job, as a fixed seed tells them. The same seed asks the same questions."""

    engine: Engine
    seed: int
    job_id: str = JOB
    replies: list[Reply] = field(default_factory=list)

    async def run(self, recurrences: int) -> list[Reply]:
        """Train until the recurrences are over; what was replied, without ids that commands bring along."""
        chance = random.Random(self.seed)
        await self._ask(request(RegisterJob(spec=SPEC), job_id=self.job_id, command_id=self._id(chance)))
        for number in range(recurrences):
            recurrence = f"night-{number}"
            for _attempt in range(5):
                if not await self._train(chance, recurrence):
                    break
        return self.replies

    async def _train(self, chance: random.Random, recurrence: str) -> bool:
        begin = BeginTrial(hardware=HARDWARE, recurrence_id=recurrence)
        trial = await self._ask(request(begin, job_id=self.job_id, command_id=self._id(chance)))
        assert isinstance(trial, TrialBegun), trial
        fate = chance.random()
        energy = 1000.0 * (1 + abs(trial.batch_size - 96) / 96) * chance.uniform(0.9, 1.1)
        for epoch in range(1, 30):
            if fate < 0.1 and epoch == 2:
                over = finish(trial, Outcome.INFEASIBLE, "out_of_memory: 24 GiB asked for 🤯", job_id=self.job_id)
                await self._ask(replace(over, command_id=self._id(chance)))
                return True
            metric = float("nan") if fate > 0.97 else min(0.95, epoch * chance.uniform(0.1, 0.2))
            told = report(trial, epoch, job_id=self.job_id, time_s=7.3 * epoch, energy_j=energy * epoch, metric=metric)
            judged = await self._ask(replace(told, command_id=self._id(chance)))
            assert isinstance(judged, EpochJudged), judged
            if judged.should_stop:
                return judged.should_retry
        raise AssertionError("a trial goes on for ever")

    async def _ask(self, asked: Request) -> Reply:
        [answer] = await ask(self.engine, asked)
        self.replies.append(answer.reply)
        return answer.reply

    def _id(self, chance: random.Random) -> str:
        return str(uuid.UUID(int=chance.getrandbits(128), version=4))


async def whole_history(store: Store, job_id: str | None = None) -> list[RecordedEvent]:
    """The log of a job or of all, page by page."""
    history: list[RecordedEvent] = []
    after = 0
    while page := await store.history(job_id, after=after, limit=50):
        history += [stored.recorded for stored in page]
        after = page[-1].event_id
    return history


def folded(history: Iterable[RecordedEvent], job_id: str = JOB) -> Folding:
    """What a job's log tells, from its first event or from the snapshot that pruning left. Raises LogBroken."""
    folding = Folding(job_id)
    for recorded in sorted(history, key=lambda one: one.seq):
        folding.add(recorded)
    folding.require_whole()
    return folding


async def assert_log_equals_tables(store: Store, job_id: str = JOB) -> Job:
    """The folded log is the stored state, trial by trial and field by field; returns the folded job."""
    history = await whole_history(store, job_id)
    assert [recorded.seq for recorded in history] == list(range(1, len(history) + 1))
    told = fold(job_id, [recorded.event for recorded in history])
    stored = await store.job(job_id)
    assert stored is not None
    assert read_snapshot(stored) == replace(told, trials={})
    rows = {trial.trial_number: without_lease(trial) for trial in await store.trials(job_id)}
    assert comparable(rows.values()) == comparable([without_lease(trial) for trial in told.trials.values()])
    assert sorted(rows) == list(range(1, told.last_trial_number + 1))
    return told


def without_lease(trial: Trial) -> Trial:
    """A trial as history knows it."""
    return replace(trial, lease_expires_at=None)


def comparable(trials: Any) -> Sequence[str]:
    """Trials as JSON: NaN equals NaN there."""
    return sorted(dump(trial).decode() for trial in trials)
