"""Jobs that go alone, and jobs in trouble, in all their ends; in memory, with doubles at the edges."""

import asyncio
import itertools
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from bso.domain.commands import BeginTrial, FinishTrial, Request
from bso.domain.errors import BsoError
from bso.domain.trial import Outcome
from bso.service.answers import Answer, Undecided
from bso.service.errors import Conflict, DecidingTimedOut, JobDamaged, JobHeld, StoreTimedOut, StoreUnavailable
from bso.service.parked_jobs import InMemoryParkedJobs
from bso_broker.messages import Delivery
from bso_workers.admission import Admitted, Origin
from bso_workers.batch_limit import BatchLimit
from bso_workers.lanes import Lanes
from bso_workers.metrics import Metrics
from bso_workers.troubled_jobs import LONGEST_HOLD_S, TroubledJobs
from tests.integration.workers.recurrences import HARDWARE
from tests.servers import PATIENCE_S, eventually_async


class Keeping:
    """In the place of the Settlement: notes whose commands were declined, and which were kept, but the first tries."""

    def __init__(self, *, not_yet: int = 0) -> None:
        self.not_yet = not_yet
        self.declined: list[str] = []
        self.kept: list[tuple[str, bool]] = []

    async def decline(self, one: Admitted, *, retry_after_s: float, advice: str = "") -> None:
        assert retry_after_s > 0
        self.declined.append(one.request.command_id)

    async def keep(self, one: Admitted, *, pause_s: float, is_copy: bool) -> bool:
        assert pause_s > 0
        self.not_yet -= 1
        if self.not_yet >= 0:
            return False
        self.kept.append((one.request.command_id, is_copy))
        return True


class Failing:
    """A decider that raises the given errors, one a call, and answers after that; ``sizes`` are those of all calls."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.waited: list[bool] = []
        self.sizes: list[int] = []

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        return list(self._answers(requests, waits=False))

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        return self._answers(requests, waits=True)

    def _answers(self, requests: Sequence[Request], *, waits: bool) -> list[Answer]:
        self.waited.append(waits)
        self.sizes.append(len(requests))
        if self.errors:
            raise self.errors.pop(0)
        return [Answer(request=request, reply=None) for request in requests]  # type: ignore[arg-type]


class Locked(Failing):
    """A decider of jobs whose locks others never release: those that wait for them wait for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        raise Conflict("held")

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        self.waiting.append(requests[0].job_id)
        await asyncio.Event().wait()
        return []


def finish() -> Admitted:
    command = FinishTrial(trial_number=1, trial_id="a-trial", outcome=Outcome.INTERRUPTED)
    return admitted(Request(command_id=str(uuid.uuid4()), job_id="job", command=command))


def command(job_id: str = "job") -> Admitted:
    return admitted(Request(command_id=str(uuid.uuid4()), job_id=job_id, command=BeginTrial(hardware=HARDWARE)))


def admitted(request: Request) -> Admitted:
    delivery = Delivery(body=b"", message_id=request.command_id)
    return Admitted(delivery=delivery, sender=Origin(user=None, reply_to=None), request=request)


class Scene:
    """Lanes over doubles; ``obstacle`` is what keeps everything from being recorded."""

    def __init__(
        self,
        decider: Failing,
        *,
        settling: Exception | None = None,
        settlement: Keeping | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.jobs = InMemoryParkedJobs(lambda: datetime.now(UTC))
        self.settlement = settlement or Keeping()
        self.parking = self.worker(clock)
        self.settled: list[str] = []
        self.handed_back: list[str | None] = []
        self.shut: list[BsoError] = []
        self.obstacle: BsoError | None = None
        self.batch_limit = BatchLimit(10)
        self.settling = settling
        self.lanes = Lanes(
            decider=decider,
            parking=self.parking,
            settle=self.settle,
            blame=self.blame,
            shut=self.note_shut,
            hand_back=self.hand_back,
            batch_limit=self.batch_limit,
            most_held=30,
            grace_s=0.0,
        )

    def worker(self, clock: Callable[[], float] | None = None) -> TroubledJobs:
        """What one worker knows of jobs in trouble."""
        clock = clock or asyncio.get_running_loop().time
        return TroubledJobs(jobs=self.jobs, settlement=self.settlement, metrics=Metrics(), clock=clock, limit_s=3600.0)  # type: ignore[arg-type]

    async def settle(self, items: Sequence[Admitted], answers: Sequence[Answer]) -> None:
        if self.settling is not None:
            raise self.settling
        self.settled += [one.request.command_id for one in items]

    async def blame(self) -> BsoError | None:
        return self.obstacle

    async def note_shut(self, error: BsoError) -> None:
        self.shut.append(error)

    async def hand_back(self, deliveries: Sequence[Delivery]) -> None:
        self.handed_back += [delivery.message_id for delivery in deliveries]

    async def go(self, *items: Admitted) -> None:
        self.lanes.add({"job": items})
        await eventually_async(lambda: "job" not in self.lanes, what="the end of the lane")


async def test_a_job_that_others_hold_is_tried_without_waiting_then_waited_for_then_parked() -> None:
    decider = Failing(*[Conflict("held")] * 1000)
    scene, one = Scene(decider), command()
    await scene.go(one)
    assert decider.waited[-2:] == [True, False], "when it has waited in vain, it looks whether others decide on it"
    assert sum(decider.waited) == 1, "the engine has a patience of its own"
    assert scene.settlement.declined == [one.request.command_id]
    assert [job.reason for job in await scene.jobs.all()] == ["held"]
    assert scene.shut == []


async def test_commands_of_a_job_come_out_in_their_order() -> None:
    scene, items = Scene(Failing(Conflict("held"))), [command() for _ in range(25)]
    scene.lanes.add({"job": items[:5]})
    await scene.go(*items[5:])
    assert scene.settled == [one.request.command_id for one in items]


async def test_jobs_that_others_hold_are_parked_the_longest_held_first_when_their_commands_are_too_many() -> None:
    decider = Locked()
    scene = Scene(decider)
    jobs = [f"job-{number}" for number in range(4)]
    for job_id in jobs[:2]:
        scene.lanes.add({job_id: [command(job_id) for _ in range(15)]})
        await eventually_async(partial(_is_last, job_id, decider.waiting), what="a lane that waits")
    assert await scene.jobs.all() == [], "both have room: all that they may"
    scene.lanes.add({jobs[2]: [command(jobs[2]) for _ in range(15)]})
    await eventually_async(lambda: jobs[0] not in scene.lanes, what="the end of the lane that waited longest")
    scene.lanes.add({jobs[2]: [command(jobs[2])]})
    await eventually_async(lambda: jobs[1] not in scene.lanes, what="the end of the next")
    assert [job.job_id for job in await scene.jobs.all()] == jobs[:2]
    assert jobs[2] in scene.lanes
    assert len(scene.settlement.declined) == 30
    await scene.lanes.close()


async def test_a_job_with_many_commands_is_not_parked_for_their_number_alone() -> None:
    decider, is_released = Locked(), asyncio.Event()

    async def execute(requests: Sequence[Request]) -> list[Answer]:
        decider.waiting.append(requests[0].job_id)
        await is_released.wait()
        return [Answer(request=request, reply=None) for request in requests]  # type: ignore[arg-type]

    decider.execute = execute  # type: ignore[method-assign]
    scene = Scene(decider)
    scene.lanes.add({"job": [command() for _ in range(31)]})
    await eventually_async(lambda: len(decider.waiting) > 0, what="a lane that waits")
    await asyncio.sleep(0)  # noqa: TID251  a deadline that were over would end the lane now
    assert await scene.jobs.all() == []
    is_released.set()
    await eventually_async(lambda: "job" not in scene.lanes, what="the end of the lane")
    assert (len(scene.settled), await scene.jobs.all()) == (31, [])


async def test_there_is_room_to_make_while_the_job_of_another_lane_is_being_parked() -> None:
    scene = Scene(Failing(*[Conflict("held")] * 1000))
    is_parking, may_go_on = asyncio.Event(), asyncio.Event()
    park = scene.jobs.park

    async def slowly(job_id: str, *, reason: str, pause_s: float) -> None:
        is_parking.set()
        await may_go_on.wait()
        await park(job_id, reason=reason, pause_s=pause_s)

    scene.jobs.park = slowly  # type: ignore[method-assign]
    scene.lanes.add({"one": [command("one") for _ in range(20)]})
    async with asyncio.timeout(PATIENCE_S):
        await is_parking.wait()
    scene.lanes.add({"one": [command("one") for _ in range(20)], "two": [command("two")]})
    may_go_on.set()
    await eventually_async(lambda: not ("one" in scene.lanes or "two" in scene.lanes), what="the end of both lanes")
    assert {job.job_id for job in await scene.jobs.all()} == {"one", "two"}
    assert (len(scene.settlement.declined), scene.settled) == (41, [])


def _is_last(job_id: str, jobs: Sequence[str]) -> bool:
    return list(jobs[-1:]) == [job_id]


async def test_what_waits_for_parked_jobs_is_one_lane_and_all_others_are_tried_once() -> None:
    decider, now_s = Locked(), 0.0
    scene = Scene(decider, clock=lambda: now_s)
    jobs = [f"job-{number}" for number in range(6)]
    for job_id in jobs:
        await scene.parking.park(job_id, Conflict("held"))
    now_s = 10.0
    for job_id in jobs:
        scene.lanes.add({job_id: [command(job_id)]})
    await eventually_async(lambda: not any(job_id in scene.lanes for job_id in jobs[1:]), what="the end of the others")
    assert decider.waiting == jobs[:1]
    assert len(scene.settlement.declined) == 5
    await scene.lanes.close()


async def test_a_job_that_others_hold_again_and_again_is_not_parked_for_want_of_a_place_to_wait() -> None:
    decider = Locked()
    scene = Scene(decider)
    for job_id in ("held-1", "held-2"):
        scene.lanes.add({job_id: [command(job_id)]})
    await eventually_async(lambda: len(decider.waiting) == 2, what="all places to wait taken")
    tries = 0

    async def attempt(requests: Sequence[Request]) -> list[Answer | Undecided]:
        nonlocal tries
        tries += 1
        if tries < 12:
            raise Conflict("held")
        return [Answer(request=request, reply=None) for request in requests]  # type: ignore[arg-type]

    decider.attempt = attempt  # type: ignore[method-assign]
    await scene.go(one := command())
    assert scene.settled == [one.request.command_id]
    assert await scene.jobs.all() == []
    await scene.lanes.close()


class Busy(Locked):
    """A decider of jobs that other workers always hold, and go on with, until each has been waited for in vain."""

    def __init__(self, *, rises: bool = True) -> None:
        super().__init__()
        self.rises = rises
        self.last_seq = 1
        self.tries_after = 0

    async def attempt(self, requests: Sequence[Request]) -> list[Answer | Undecided]:
        self.last_seq += self.rises
        self.tries_after += bool(self.waiting)
        if self.tries_after > 3:
            return [Answer(request=request, reply=None) for request in requests]  # type: ignore[arg-type]
        raise JobHeld(requests[0].job_id, last_seq=self.last_seq)

    async def execute(self, requests: Sequence[Request]) -> list[Answer]:
        self.waiting.append(requests[0].job_id)
        raise Conflict("waited in vain")


async def test_a_job_that_others_decide_on_is_busy_and_not_parked() -> None:
    scene = Scene(decider := Busy())
    await scene.go(one := command())
    assert scene.settled == [one.request.command_id]
    assert decider.waiting != []
    assert await scene.jobs.all() == []


async def test_a_job_that_others_hold_without_deciding_on_it_is_parked() -> None:
    scene = Scene(Busy(rises=False))
    await scene.go(command())
    assert [job.reason for job in await scene.jobs.all()] == ["another transaction holds job job"]


async def test_a_busy_job_is_not_parked_to_make_room_either() -> None:
    decider = Busy()
    wait_in_vain = decider.execute

    async def execute(requests: Sequence[Request]) -> list[Answer]:
        with suppress(Conflict):
            await wait_in_vain(requests)
        await asyncio.Event().wait()  # until others need its room
        return []

    decider.execute = execute  # type: ignore[method-assign]
    scene = Scene(decider)
    for job_id in ("busy-1", "busy-2"):
        scene.lanes.add({job_id: [command(job_id) for _ in range(20)]})
    await eventually_async(lambda: len(scene.settled) == 20, what="the end of the lane that had to make room")
    assert await scene.jobs.all() == []
    await scene.lanes.close()


async def test_what_was_over_in_the_meantime_parks_nobody() -> None:
    decider = Failing(*[StoreUnavailable("did not answer")] * 2)
    scene, one = Scene(decider), command()
    await scene.go(one)
    assert decider.waited == [False, True, True]
    assert scene.settled == [one.request.command_id]
    assert await scene.jobs.all() == []


async def test_batches_shrink_after_each_timeout_and_grow_again_with_success() -> None:
    timeouts = StoreTimedOut("did not answer"), DecidingTimedOut("too much CPU")
    scene, items = Scene(decider := Failing(*timeouts)), [command() for _ in range(30)]
    await scene.go(*items)
    assert decider.sizes == [10, 5, 2, 3, 4, 5, 6, 7, 3]
    assert scene.settled == [one.request.command_id for one in items]
    assert scene.batch_limit.now == 9
    assert scene.batch_limit.obstacle == "too much CPU"


async def test_a_store_that_is_slow_is_an_obstacle_until_it_answers_again() -> None:
    limit = BatchLimit(10)
    limit.failed(StoreTimedOut("did not answer"))
    assert limit.obstacle == "did not answer"
    limit.succeeded()
    assert limit.obstacle is None


async def test_where_nothing_can_be_recorded_the_intake_is_shut_and_nobody_is_parked() -> None:
    scene = Scene(Failing(*[StoreUnavailable("away")] * 10))
    scene.obstacle = StoreUnavailable("still away")
    await scene.go(command())
    assert scene.shut == [scene.obstacle]
    assert (await scene.jobs.all(), scene.settlement.declined) == ([], [])


async def test_a_lane_that_breaks_hands_its_commands_back() -> None:
    scene, items = Scene(Failing(), settling=ZeroDivisionError("a bug")), [command() for _ in range(12)]
    await scene.go(*items)
    assert set(scene.handed_back) == {one.delivery.message_id for one in items}


async def test_commands_of_a_parked_job_are_kept_together_in_their_order_and_copies_once() -> None:
    scene, items = Scene(Failing(*[Conflict("held")] * 1000), settlement=Keeping()), [finish() for _ in range(25)]
    copy = replace(items[3], delivery=replace(items[3].delivery, tag=99))
    await scene.go(*items[:5], copy, *items[5:])
    kept = scene.settlement.kept
    assert [command_id for command_id, is_copy in kept if not is_copy] == [one.request.command_id for one in items]
    assert [command_id for command_id, is_copy in kept if is_copy] == [copy.request.command_id]


async def test_what_could_not_be_kept_is_tried_again() -> None:
    scene, items = Scene(Failing(*[Conflict("held")] * 1000), settlement=Keeping(not_yet=3)), [finish(), finish()]
    await scene.go(*items)
    assert {command_id for command_id, _ in scene.settlement.kept} == {one.request.command_id for one in items}


async def test_a_job_that_has_recovered_at_one_worker_is_no_longer_known_at_others() -> None:
    scene = Scene(Failing())
    other = scene.worker()
    await scene.parking.park("job", Conflict("held"))
    assert not other.knows("job")
    await other.refresh()
    assert (other.knows("job"), other.pause_s("job")) == (True, 0.0), "it may be tried at once"
    await scene.parking.works(["job"])
    assert other.knows("job")
    await other.refresh()
    assert not other.knows("job")


async def test_a_job_is_left_alone_for_longer_each_time() -> None:
    parking = Scene(Failing()).parking
    pauses = []
    for _ in range(6):
        await parking.park("job", JobDamaged("behind its log"))
        pauses.append(round(parking.pause_s("job")))
    assert pauses == [5, 10, 20, 40, 60, 60]


async def test_facts_that_the_broker_does_not_keep_stay_with_senders_that_wait_for_their_reply() -> None:
    """Else those of one job would fill the prefetch, and no other command would come."""
    moments = itertools.count(step=LONGEST_HOLD_S + 1.0)
    scene = Scene(Failing(), settlement=Keeping(not_yet=5), clock=lambda: float(next(moments)))
    unawaited, awaited, parked = finish(), finish(), finish()
    awaited = replace(awaited, sender=Origin(user=None, reply_to="bso.reply.guest.1"))
    parked = replace(parked, sender=awaited.sender, delivery=replace(parked.delivery, parked_s=5.0))
    await scene.parking.keep([unawaited, awaited, parked])
    assert scene.settlement.declined == [awaited.request.command_id]
    assert {command_id for command_id, _ in scene.settlement.kept} == {
        one.request.command_id for one in (unawaited, parked)
    }


async def test_a_job_that_somebody_holds_is_tried_again_soon_while_that_may_be_a_frozen_session() -> None:
    scene = Scene(Failing())
    now_s, pauses = 0.0, []
    parking = scene.worker(clock=lambda: now_s)
    for _ in range(5):
        await parking.park("job", Conflict("held"))
        pauses.append(parking.pause_s("job"))
        now_s += 4.0
    assert pauses == [1.0, 1.0, 1.0, 1.0, 2.0]


@pytest.mark.parametrize("jobs", [1, 10])
async def test_many_jobs_in_trouble_are_an_obstacle_and_few_are_not(jobs: int) -> None:
    parking = Scene(Failing()).parking
    for number in range(jobs):
        await parking.park(f"job-{number}", Conflict("held"))
    assert (parking.obstacle is not None) == (jobs == 10)
