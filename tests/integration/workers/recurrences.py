"""Trainings as workers see them: recurrences that begin trials, report epochs, and go on until there is a model."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, Self

from bso.domain.commands import (
    BeginTrial,
    Command,
    DescribeJob,
    EpochCostProbe,
    RegisterJob,
    ReportEpoch,
    ReportEpochCosts,
    Request,
)
from bso.domain.events import TrialEnded
from bso.domain.evolve import fold
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import EpochJudged, JobDescription, Problem, Registered, Reply, TrialBegun
from bso.domain.trial import Outcome, Trial
from bso.replay.verification import verify
from bso.schema.codec import decode_reply, dump, encode_command
from bso.service.engine import Engine
from bso.service.ports import Store
from bso.service.records import StoredEvent
from bso.service.serialization import read_snapshot
from bso.storage import SqlStore
from tests.fakes.memory_broker import Broker, CommandCaller
from tests.servers import PATIENCE_S, eventually_async

HARDWARE = HardwareKind(gpu_model="A40", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
SPEC: dict[str, Any] = {
    "batch_sizes": [16, 32, 64, 128, 256],
    "default_batch_size": 64,
    "target_metric": 0.9,
    "max_epochs": 6,
    "mab_seed": 7,
}
# Epochs until the target is reached, and what an epoch costs; 256 never gets there.
EPOCHS_NEEDED = {16: 4, 32: 3, 64: 2, 128: 3, 256: 1000}
EPOCH_S = {16: 9.0, 32: 6.0, 64: 5.0, 128: 4.0, 256: 3.0}


class Ask(Protocol):
    """Sends a command and waits for its reply."""

    async def __call__(self, job_id: str, command: Command, *, command_id: str | None = None) -> Reply:
        """The reply."""
        ...


@dataclass(kw_only=True)
class Queue:
    """Asks the workers behind a broker, many questions at once; an async context manager.

    ``is_patient``: where they ask for patience, it asks again under the same command_id, as often as that takes.
    """

    broker: Broker
    timeout_s: float = PATIENCE_S
    is_patient: bool = False
    _client: CommandCaller = field(init=False)

    async def __aenter__(self) -> Self:
        self._client = self.broker.rpc_client()
        await self._client.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.close()

    async def __call__(self, job_id: str, command: Command, *, command_id: str | None = None) -> Reply:
        command_id = command_id or str(uuid.uuid4())
        body = encode_command(Request(command_id=command_id, job_id=job_id, command=command))
        while True:
            reply = decode_reply(await self._client.call(body, message_id=command_id, timeout_s=self.timeout_s))
            if not (self.is_patient and isinstance(reply, Problem) and reply.retry_after_s is not None):
                return reply
            await asyncio.sleep(reply.retry_after_s)  # noqa: TID251 - as it was asked to


@dataclass(kw_only=True)
class Direct:
    """Asks an engine, without a queue."""

    engine: Engine

    async def __call__(self, job_id: str, command: Command, *, command_id: str | None = None) -> Reply:
        request = Request(command_id=command_id or str(uuid.uuid4()), job_id=job_id, command=command)
        (answer,) = await self.engine.execute([request])
        return answer.reply


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of one trial."""

    trial_number: int
    batch_size: int
    reason: str
    verdicts: tuple[str, ...]
    outcome: Outcome | None


def new_job() -> str:
    return f"job-{uuid.uuid4().hex[:8]}"


def scripted_ids(name: str) -> Callable[[], str]:
    """A source of command_ids that are the same in every run."""
    numbers = iter(range(1_000_000))
    return lambda: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{next(numbers)}"))


async def register(ask: Ask, job_id: str, *, command_id: str | None = None, **changes: Any) -> Registered:
    reply = await ask(job_id, RegisterJob(spec={**SPEC, **changes}), command_id=command_id)
    assert isinstance(reply, Registered), reply
    return reply


async def begin(ask: Ask, job_id: str, *, command_id: str | None = None, **fields: Any) -> TrialBegun:
    reply = await ask(job_id, BeginTrial(**{"hardware": HARDWARE, **fields}), command_id=command_id)
    assert isinstance(reply, TrialBegun), reply
    return reply


def report(trial: TrialBegun, number: int, **changes: Any) -> ReportEpoch:
    """The report after an epoch of a training that behaves as the tables above say."""
    size = trial.batch_size
    epoch_s = EPOCH_S.get(size, 5.0)
    usual = ReportEpoch(
        trial_number=trial.trial_number,
        trial_id=trial.trial_id,
        epoch=float(number),
        time_s=epoch_s * number,
        energy_j=epoch_s * number * 250.0,
        metric=0.95 if number >= EPOCHS_NEEDED.get(size, 3) else 0.5,
    )
    return replace(usual, **changes)


def probed(trial: TrialBegun, *sizes: int) -> ReportEpochCosts:
    """The report of what epochs with other batch sizes would cost, of a training that behaves as the tables above say.

    Its own batch size is among the probes, as the level of the others.
    """
    probes = tuple(
        EpochCostProbe(
            batch_size=size, time_s=EPOCH_S.get(size, 5.0), energy_j=EPOCH_S.get(size, 5.0) * 250.0, variance=0.01
        )
        for size in (trial.batch_size, *sizes)
    )
    return ReportEpochCosts(
        trial_number=trial.trial_number, trial_id=trial.trial_id, probes=probes, time_s=0.5, energy_j=125.0
    )


async def train(ask: Ask, job_id: str, trial: TrialBegun, new_id: Callable[[], str | None]) -> tuple[Trained, bool]:
    """Report epochs until told to stop; also whether the recurrence still wants a model."""
    verdicts: list[str] = []
    for epoch in range(1, 100):
        reply = await ask(job_id, report(trial, epoch), command_id=new_id())
        assert isinstance(reply, EpochJudged), reply
        verdicts.append(reply.reason)
        if reply.should_stop:
            trained = Trained(
                trial_number=trial.trial_number,
                batch_size=trial.batch_size,
                reason=trial.reason,
                verdicts=tuple(verdicts),
                outcome=reply.outcome,
            )
            return trained, reply.should_retry
    raise AssertionError(f"trial {trial.trial_number} was never stopped")


async def recur(
    ask: Ask, job_id: str, recurrence_id: str, *, new_id: Callable[[], str | None] = lambda: None
) -> list[Trained]:
    """One recurrence: trials until there is a model."""
    trials: list[Trained] = []
    wants_more = True
    while wants_more:
        begun = await begin(ask, job_id, recurrence_id=recurrence_id, command_id=new_id())
        trained, wants_more = await train(ask, job_id, begun, new_id)
        trials.append(trained)
    return trials


async def recur_at_once(ask: Ask, job_id: str, *, at_once: int, trials: int) -> int:
    """Overlapping recurrences, one after another in each of several rows, until so many trials ran; their number."""
    load = Load(ask=ask, job_id=job_id)
    async with asyncio.TaskGroup() as group:
        for row in range(at_once):
            group.create_task(load.row(row, lambda: load.trials >= trials))
    return load.trials


@dataclass(kw_only=True)
class Load:
    """Overlapping recurrences of one job that go on until told to stop: an async context manager.

    Leaving it waits until the recurrences under way have ended.
    """

    ask: Ask
    job_id: str
    at_once: int = 8
    trials: int = 0
    _is_over: bool = False

    async def __aenter__(self) -> Self:
        self._rows = [asyncio.create_task(self.row(row, lambda: self._is_over)) for row in range(self.at_once)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over = True
        if error is not None:
            for row in self._rows:
                row.cancel()
        await asyncio.gather(*self._rows, return_exceptions=error is not None)

    async def row(self, row: int, is_over: Callable[[], bool]) -> None:
        """One recurrence after another."""
        number = 0
        while not is_over():
            number += 1
            trained = await recur(self.ask, self.job_id, f"row-{row}-{number}")
            self.trials += len(trained)

    async def progress(self, trials: int) -> None:
        """Wait until so many more trials have ended."""
        wanted = self.trials + trials
        for row in self._rows:
            if row.done():
                row.result()
        await eventually_async(lambda: self.trials >= wanted, what=f"{trials} more trials")


async def described(ask: Ask, job_id: str) -> JobDescription:
    reply = await ask(job_id, DescribeJob())
    assert isinstance(reply, JobDescription), reply
    return reply


async def history(store: Store, job_id: str) -> Sequence[StoredEvent]:
    """All events of a job."""
    events: list[StoredEvent] = []
    while page := await store.history(job_id, after=events[-1].event_id if events else 0):
        events += page
    return events


async def audit(store: Store, job_id: str) -> int:
    """Check that log and tables of a job agree and that nothing is lost or doubled; returns its number of trials."""
    recorded = [stored.recorded for stored in await history(store, job_id)]
    trials = await store.trials(job_id)
    stored_job = await store.job(job_id)
    assert stored_job is not None
    assert [event.seq for event in recorded] == list(range(1, len(recorded) + 1))
    assert [trial.trial_number for trial in trials] == list(range(1, len(trials) + 1))
    assert len({trial.trial_id for trial in trials}) == len(trials)
    endings = [event.event.trial_number for event in recorded if isinstance(event.event, TrialEnded)]
    assert sorted(endings) == [trial.trial_number for trial in trials if not trial.is_active]
    if isinstance(store, SqlStore):
        verdict = await verify(store, job_id)
        assert verdict.is_sound, (verdict.problem, [difference.sentence for difference in verdict.differences])
        return len(trials)
    folded = fold(job_id, (event.event for event in recorded))
    assert replace(folded, trials={}) == read_snapshot(stored_job)
    assert [_row(folded.trials[number]) for number in sorted(folded.trials)] == [_row(trial) for trial in trials]
    return len(trials)


def _row(trial: Trial) -> bytes:
    """A trial as text, in which NaN equals NaN; the lease is no part of history."""
    return dump(replace(trial, lease_expires_at=None))
