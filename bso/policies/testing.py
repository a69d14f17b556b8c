"""What every policy must keep, as tests: name the policy in a subclass, and pytest does the rest.

    from bso.policies.testing import PolicyContract

    class TestMine(PolicyContract):
        policy = "mine"

The jobs of these tests are decided by the engine over a store in memory, so that between two commands everything that
the policy remembers is written as JSON and read again, as it is between workers.
"""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

from bso.domain.commands import (
    AllowBatchSize,
    BeginTrial,
    Command,
    DescribeJob,
    FinishTrial,
    RegisterJob,
    ReportEpoch,
    Request,
)
from bso.domain.events import TrialEnded, TrialStarted
from bso.domain.evolve import fold
from bso.domain.frozen_values import replace
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.log import RecordedEvent
from bso.domain.policies import policy_named
from bso.domain.policy import Inherited, Policy
from bso.domain.replies import EpochJudged, JobDescription, Registered, Reply, TrialBegun, TrialFinished
from bso.domain.trial import OUT_OF_MEMORY, Outcome
from bso.schema.codec import (
    MAX_EVENT_NAME,
    all_events,
    decode_event,
    encode_event,
    job_from_state,
    published,
    state_of,
    wire_name,
)
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore

JOB = "contract"
SIZES = (16, 32, 64, 128, 256)
HERE = HardwareKind(gpu_model="A100", max_power_w=400.0, energy_method=EnergyMethod.NVML_COUNTER)
ELSEWHERE = HardwareKind(gpu_model="V100", max_power_w=250.0, energy_method=EnergyMethod.NVML_COUNTER)
USUAL_EPOCHS = {16: 6, 32: 7, 64: 9, 128: 13, 256: 22}
"""Epochs to the target by batch size; an epoch costs less the larger the batches are, so that 64 is cheapest."""
_MOST_EPOCHS = 1000
_MOST_ATTEMPTS = 50
_Reply = TypeVar("_Reply")


def _whole(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """The test as a plain function, so that no plugin of pytest is needed."""

    def run(self: Any) -> None:
        asyncio.run(test(self))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@dataclass(kw_only=True)
class RecurringJob:
    """A job under a policy, and trainings of it that need ``epochs``; None: that batch size never converges.

    Batch sizes from ``out_of_memory_from`` on do not fit. ``noise`` is the standard deviation of ln cost between
    trials.
    """

    policy: str
    epochs: dict[int, int | None] = field(default_factory=lambda: dict(USUAL_EPOCHS))
    out_of_memory_from: int | None = None
    noise: float = 0.0
    hardware: HardwareKind = HERE
    trials: list[TrialBegun] = field(default_factory=list)
    batch_sizes: tuple[int, ...] = SIZES
    _now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    _sent: int = 0

    def __post_init__(self) -> None:
        self._store = InMemoryStore(lambda: self._now)

    async def send(self, command: Command, expected: type[_Reply]) -> _Reply:
        """The reply to a command, which must be of the type that is expected."""
        self._sent += 1
        self._now += timedelta(seconds=1)
        command_id = str(uuid.UUID(int=self._sent))
        engine = Engine(self._store)  # a new one has read nothing yet
        (answer,) = await engine.execute([Request(command_id=command_id, job_id=JOB, command=command)])
        assert answer.poison is None, f"the policy failed over {type(command).__name__}: {answer.poison}"
        reply: Reply = answer.reply
        assert isinstance(reply, expected), f"expected {expected.__name__}, got {reply}"
        return reply

    async def register(self, **spec: Any) -> Registered:
        """Register the job, or change what is registered."""
        usual: dict[str, Any] = {"policy": self.policy, "mab_seed": 1}
        if not self._sent:
            usual |= {"batch_sizes": SIZES, "default_batch_size": 128, "target_metric": 0.9, "max_epochs": 60}
        self.batch_sizes = spec.get("batch_sizes", self.batch_sizes)
        return await self.send(RegisterJob(spec=usual | spec), Registered)

    async def begin(self, recurrence: int | str) -> TrialBegun:
        """Begin a trial of a recurrence, of a batch size that the job has."""
        command = BeginTrial(hardware=self.hardware, recurrence_id=f"night-{recurrence}")
        trial = await self.send(command, TrialBegun)
        self.trials.append(trial)
        return trial

    async def recur(self, recurrence: int | str) -> list[tuple[TrialBegun, EpochJudged | TrialFinished]]:
        """Begin and train trials until there is a model, or no attempt is left."""
        tried: list[tuple[TrialBegun, EpochJudged | TrialFinished]] = []
        while not tried or tried[-1][1].should_retry:
            assert len(tried) < _MOST_ATTEMPTS, f"recurrence {recurrence} asks for more than {_MOST_ATTEMPTS} trials"
            trial = await self.begin(recurrence)
            tried.append((trial, await self.train(trial)))
        return tried

    async def converge(self, recurrence: int | str) -> None:
        """The same, where there must be a model in the end."""
        trial, ended = (await self.recur(recurrence))[-1]
        assert ended.outcome is Outcome.CONVERGED, (
            f"recurrence {trial.recurrence_id} ended without a model: its last trial, of batch size "
            f"{trial.batch_size}, as {ended.outcome} ({ended.reason})"
        )

    async def train(self, trial: TrialBegun) -> EpochJudged | TrialFinished:
        """Train a trial to its end."""
        if self.out_of_memory_from is not None and trial.batch_size >= self.out_of_memory_from:
            return await self.finish(trial, Outcome.INFEASIBLE, f"{OUT_OF_MEMORY}: 80 GiB wanted")
        epoch = 0
        while epoch < _MOST_EPOCHS:
            epoch += 1
            judged = await self.report(trial, epoch)
            if judged.should_stop:
                return judged
        raise AssertionError(f"trial {trial.trial_number} goes on after {epoch} epochs, far beyond max_epochs")

    async def report(self, trial: TrialBegun, epoch: int) -> EpochJudged:
        """Report an epoch; the metric rises to the target with the last one that is needed."""
        needed = self.epochs[trial.batch_size]
        metric = 0.0 if needed is None else min(0.9, 0.9 * epoch / needed)
        luck = math.sin(1000.0 * (trial.trial_number + 1))  # the same in every run of the test, and as good as chance
        epoch_s = (20.0 + 2000.0 / trial.batch_size) * math.exp(self.noise * luck)
        command = ReportEpoch(
            trial_number=trial.trial_number,
            trial_id=trial.trial_id,
            epoch=float(epoch),
            time_s=epoch * epoch_s,
            energy_j=epoch * epoch_s * 0.6 * self.hardware.max_power_w,
            metric=metric,
        )
        return await self.send(command, EpochJudged)

    async def finish(self, trial: TrialBegun, outcome: Outcome, reason: str = "") -> TrialFinished:
        """Let a training say how it ended."""
        command = FinishTrial(trial_number=trial.trial_number, trial_id=trial.trial_id, outcome=outcome, reason=reason)
        return await self.send(command, TrialFinished)

    async def log(self) -> list[RecordedEvent]:
        """All that happened."""
        return [stored.recorded for stored in await self._store.history(JOB, limit=1_000_000)]

    async def state(self) -> str:
        """What is stored of the job, as JSON text."""
        stored = await self._store.job(JOB)
        assert stored is not None
        return state_of(job_from_state(JOB, stored.last_seq, json.loads(stored.state)))


class PolicyContract:
    """The tests. ``policy`` is the name of the policy, which must be installed."""

    policy: ClassVar[str]

    def job(self, **fields: Any) -> RecurringJob:
        """A job under the policy."""
        return RecurringJob(policy=self.policy, **fields)

    def test_it_is_found_under_its_name(self) -> None:
        found = policy_named(self.policy)
        assert isinstance(found, Policy)
        assert found.name == self.policy

    def test_its_events_have_names_that_are_short_enough_and_not_taken(self) -> None:
        for event in policy_named(self.policy).events:
            name = wire_name(event)
            assert len(name) <= MAX_EVENT_NAME, f"{name} has {len(name)} characters, more than {MAX_EVENT_NAME}"
            assert all_events()[name] is event, f"{name} is already the name of {all_events()[name]}"

    @_whole
    async def test_each_recurrence_ends_with_a_model_by_choices_that_say_why(self) -> None:
        job = self.job(noise=0.2)
        await job.register()
        for number in range(30):
            await job.converge(number)
        for trial in job.trials:
            assert trial.reason.strip(), f"no reason was given for batch size {trial.batch_size}"

    @_whole
    async def test_a_bound_is_no_less_than_what_the_cheapest_training_has_cost(self) -> None:
        job, cheapest = self.job(), math.inf
        await job.register()
        for number in range(20):
            for trial, ended in await job.recur(number):
                least = cheapest if cheapest < math.inf else 0.0
                assert trial.bound is None or (trial.bound > 0.0 and trial.bound >= least), (
                    f"the bound of trial {trial.trial_number} is {trial.bound:g} J: no training can be that cheap, and "
                    f"the cheapest one until then has cost {least:g} J"
                )
                if ended.outcome is Outcome.CONVERGED and isinstance(ended, EpochJudged):
                    cheapest = min(cheapest, ended.cost)

    @_whole
    async def test_without_early_stopping_there_is_no_bound(self) -> None:
        for changes in ({"early_stopping": False}, {"beta_knob": None}):
            job = self.job(noise=0.2)
            await job.register(**changes)
            for number in range(12):
                for trial, ended in await job.recur(number):
                    bounds = {trial.bound, ended.bound if isinstance(ended, EpochJudged) else None}
                    assert bounds == {None}, f"trial {trial.trial_number} has a bound in spite of {changes}"

    @_whole
    async def test_the_last_attempt_of_a_recurrence_is_not_stopped_for_its_cost(self) -> None:
        job = self.job(epochs=dict.fromkeys(SIZES))
        await job.register(max_epochs=3)
        for number in range(2):
            _, ended = (await job.recur(number))[-1]
            assert ended.outcome is Outcome.NOT_CONVERGED, f"the last attempt ended as {ended.outcome}: {ended.reason}"

    @_whole
    async def test_what_does_not_fit_is_not_tried_again_in_the_recurrence_while_something_else_is_left(self) -> None:
        job = self.job(out_of_memory_from=64)
        await job.register(max_attempts=10)
        for number in range(10):
            sizes = [trial.batch_size for trial, _ in await job.recur(number)]
            for tries, size in enumerate(sizes):
                too_large = min((before for before in sizes[:tries] if before >= 64), default=512)
                assert size < too_large, f"batch size {size} was chosen after {too_large} ran out of memory"

    @_whole
    async def test_a_job_in_which_nothing_converges_still_gets_batch_sizes_and_recovers(self) -> None:
        job = self.job(epochs=dict.fromkeys(SIZES))
        await job.register(max_epochs=3)
        for number in range(8):
            await job.recur(number)
        job.epochs = dict.fromkeys(SIZES, 2)
        await job.converge("well")

    @_whole
    async def test_overlapping_recurrences_interruptions_and_cancellations_are_borne(self) -> None:
        job = self.job()
        await job.register()
        for number in range(12):
            one, other = await job.begin(f"{number}-a"), await job.begin(f"{number}-b")
            await job.report(other, 1)
            await job.finish(other, Outcome.INTERRUPTED if number % 2 else Outcome.CANCELLED, "preempted")
            await job.train(one)
        await job.converge("after")

    @_whole
    async def test_batch_sizes_may_leave_and_join(self) -> None:
        job = self.job()
        await job.register()
        for number in range(8):
            await job.recur(number)
        await job.register(batch_sizes=(32, 512), default_batch_size=32)
        job.epochs[512] = 40
        for number in range(8, 16):
            await job.converge(number)

    @_whole
    async def test_other_hardware_another_version_and_a_batch_size_that_is_allowed_again(self) -> None:
        job = self.job(out_of_memory_from=256)
        await job.register()
        for number in range(10):
            await job.converge(number)
        job.hardware, job.out_of_memory_from = ELSEWHERE, None
        for number in range(10, 15):
            await job.converge(number)
        await job.register(target_metric=0.8)
        for number in range(15, 20):
            await job.converge(number)
        await job.send(AllowBatchSize(batch_size=256), object)
        await job.register(target_metric=0.9)
        await job.converge("back")

    @_whole
    async def test_the_same_commands_give_the_same_choices(self) -> None:
        lives = [self.job(noise=0.3), self.job(noise=0.3)]
        for job in lives:
            await job.register()
            for number in range(12):
                await job.recur(number)
        one, other = ([(trial.batch_size, trial.reason, trial.bound) for trial in job.trials] for job in lives)
        assert one == other, "the same job was trained twice, and other choices were made"

    @_whole
    async def test_the_log_alone_gives_the_state(self) -> None:
        job = await self._experienced()
        folded = fold(JOB, (recorded.event for recorded in await job.log()))
        assert state_of(folded) == await job.state(), "the log, folded, gives another state than the one that is stored"

    @_whole
    async def test_events_and_memory_are_json_and_are_read_again_as_they_were(self) -> None:
        job = await self._experienced()
        log = await job.log()
        for recorded in log:
            message = encode_event(recorded)
            assert not list(_without_json_number(json.loads(message))), f"a number is not finite: {recorded.event}"
            assert decode_event(message) == published(recorded), f"the event is read as another one: {recorded.event}"
        folded, again = (fold(JOB, (recorded.event for recorded in log)) for _ in range(2))
        assert folded.versions == again.versions, "the same log, folded twice, is remembered in two ways: see evolve"
        for version in folded.versions.values():
            self._expect_classes(version.memories, {key: one.memories for key, one in version.knowledge.items()})
        state = json.loads(await job.state())
        assert not list(_without_json_number(state)), "a number that is remembered is not finite"
        assert job_from_state(JOB, folded.last_seq, state).versions == folded.versions, (
            "what is remembered is read as something else: a field of its class is not what JSON can hold"
        )

    @_whole
    async def test_what_a_new_version_inherits_is_of_the_classes_of_its_memory(self) -> None:
        job, policy = await self._experienced(), policy_named(self.policy)
        source = fold(JOB, (recorded.event for recorded in await job.log())).version
        for is_sibling in (False, True):
            inherited = policy.inherit(source, replace(source.spec, target_metric=0.8), is_sibling=is_sibling)
            if inherited is None:
                continue
            assert isinstance(inherited, Inherited), f"inherit has to return Inherited or None, got {inherited!r}"
            unknown = inherited.on_hardware.keys() - source.knowledge.keys()
            assert not unknown, f"on_hardware names {min(unknown)!r}, which is no key of source.knowledge"
            of_version = {} if inherited.memory is None else {self.policy: inherited.memory}
            self._expect_classes(of_version, {key: {self.policy: one} for key, one in inherited.on_hardware.items()})
        await job.register(target_metric=0.8)
        await job.converge("new-version")

    @_whole
    async def test_what_is_remembered_grows_with_the_batch_sizes_tried_and_not_with_the_trials(self) -> None:
        job = self.job(noise=0.2)
        await job.register()
        known: set[int] = set()
        size = early = grown = 0
        for number in range(60):
            tried = {trial.batch_size for trial, _ in await job.recur(number)}
            before, size = size, len(json.dumps(list(_memories(json.loads(await job.state())))))
            if number < 20:
                early = size
            elif tried <= known:
                grown += size - before
            known |= tried
        assert grown <= 0.5 * early, f"{grown} characters more, after {early}"

    @_whole
    async def test_it_says_where_a_job_stands(self) -> None:
        job = await self._experienced()
        described = await job.send(DescribeJob(), JobDescription)
        (kind,) = described.kinds
        best = kind.best_batch_size
        assert best in SIZES, f"the best batch size is said to be {best}, of {SIZES}"
        assert {arm.batch_size for arm in kind.arms} == set(SIZES)
        assert all(arm.status for arm in kind.arms), "a batch size has no status"
        version = fold(JOB, (recorded.event for recorded in await job.log())).version
        outlook = policy_named(self.policy).outlook(version, version.knowledge_on(job.hardware))
        for size, expected in outlook.expected.items():
            is_finite = math.isfinite(expected.cost) and 0.0 <= expected.deviation < math.inf
            assert is_finite, f"outlook has no finite cost and deviation of batch size {size}: {expected}"

    def _expect_classes(
        self, of_version: Mapping[str, object], on_hardware: Mapping[str, Mapping[str, object]]
    ) -> None:
        """That what the policy remembers is of the classes that it names."""
        policy = policy_named(self.policy)
        of_both = [("version_memory", policy.version_memory, of_version)]
        of_both += [("hardware_memory", policy.hardware_memory, memories) for memories in on_hardware.values()]
        for name, expected, memories in of_both:
            memory = memories.get(self.policy)
            assert memory is None or (expected is not None and isinstance(memory, expected)), (
                f"{name} is not the class of what is remembered: it is {expected}, and {memory!r} is remembered"
            )

    async def _experienced(self) -> RecurringJob:
        job = self.job(noise=0.2)
        await job.register()
        for number in range(20):
            await job.recur(number)
        happened = [type(recorded.event) for recorded in await job.log()]
        assert TrialStarted in happened
        assert TrialEnded in happened
        return job


def _memories(value: object) -> Iterator[object]:
    """What policies remember, wherever it stands in a state."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key == "memories":
                yield inner
            else:
                yield from _memories(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _memories(inner)


def _without_json_number(value: object) -> Iterator[object]:
    """Numbers that JSON lacks, which are written as text."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _without_json_number(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _without_json_number(inner)
    elif value in {"NaN", "Infinity", "-Infinity"}:
        yield value
