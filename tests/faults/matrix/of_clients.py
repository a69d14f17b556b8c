"""Faults of those who train: killed, frozen, two at once, and one who wants too much."""

from __future__ import annotations

import asyncio
import signal
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bso.domain.commands import BeginTrial, Command, RegisterJob, Request
from bso.domain.decide import Context, Decision, Facts, Rules, decide
from bso.domain.evolve import apply
from bso.domain.job import Job
from bso.domain.replies import EpochJudged, Problem, Reply, TrialBegun
from bso.schema.codec import decode_reply, encode_command
from bso.service.engine import Engine, Patience
from bso_broker.rabbit import RabbitBroker
from tests.faults.matrix.lanes import Sender, lanes_of
from tests.faults.matrix.ledger import CHANGING, Asked, Ledger
from tests.faults.matrix.scenario import UNTOUCHED, scenario
from tests.faults.matrix.stage import Stage
from tests.integration.workers.recurrences import HARDWARE, SPEC, report
from tests.servers import eventually_async

_AT_ONCE = 40
_LONG_S = 300.0
_COSTLY = "costly"


@scenario("SIGKILL of trainings, six times; others take their place", promises=UNTOUCHED, group="trainings")
async def trainings_killed(stage: Stage) -> None:
    await stage.begin(trainings=3)
    async with stage.fault():
        for _ in range(6):
            await stage.pause(0.5, 2.0)
            victim = stage.rng.choice([one for one in stage.trainings if one.process.poll() is None])
            victim.process.kill()
            stage.train()


@scenario("SIGSTOP of a training for 15 s", promises=UNTOUCHED, group="trainings")
async def training_frozen(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        stage.trainings[0].process.send_signal(signal.SIGSTOP)
        await stage.pause(1.0)
        noted = len(stage.trainings[0].facts)
        await stage.pause(14.0)
        assert len(stage.trainings[0].facts) == noted, "the training went on: the fault did not strike"
        stage.trainings[0].process.send_signal(signal.SIGCONT)


@scenario(
    "answers to trainings are lost for 7 s, longer than they wait, twice and until a stop is lost",
    promises=UNTOUCHED,
    group="trainings",
)
async def answers_lost(stage: Stage) -> None:
    stops = _Stops()
    proxy = await stage.proxied(stage.amqp_url, watch=stops.watch)
    await stage.begin(trainings=4, trainings_url=proxy.url)
    async with stage.fault():
        for number in range(20):
            if number >= 2 and stops.lost:
                break
            stops.are_held = True
            proxy.stall_replies()
            await stage.pause(7.0)
            proxy.drop()
            proxy.restore()
            stops.are_held = False
            await eventually_async(
                partial(stage.trainings_begin, since_s=stage.now_s()), what="trainings that are back"
            )
            await stage.pause(0.0, 1.0)
    stage.figures["stops_lost"] = stops.lost
    assert stops.lost, "no stop was lost: the fault did not strike"


@dataclass(kw_only=True)
class _Stops:
    """Judgements to stop that pass a proxy while its replies are held."""

    are_held: bool = False
    lost: int = 0

    def watch(self, is_request: bool) -> Callable[[bytes], None]:
        """What gets the bytes of one direction of a connection."""

        def see(chunk: bytes) -> None:
            self.lost += self.are_held and not is_request and b'"should_stop":true' in chunk

        return see


@scenario("one command from forty connections at once", is_smoke=True, promises=UNTOUCHED)
async def one_command_at_once(stage: Stage) -> None:
    await stage.begin()
    request = Request(command_id=str(uuid.uuid4()), job_id=stage.others[0], command=BeginTrial(hardware=HARDWARE))
    asked = Asked(request=request, sent_s=stage.now_s(), is_others=True)
    stage.ledger.asked.append(asked)
    async with stage.fault(), AsyncExitStack() as cleaning:
        broker = await cleaning.enter_async_context(RabbitBroker(stage.amqp_url))
        callers = [broker.rpc_client() for _ in range(_AT_ONCE)]
        for caller in callers:
            await caller.start()
            cleaning.push_async_callback(caller.close)
        body = encode_command(request)
        replies = await asyncio.gather(
            *(caller.call(body, message_id=request.command_id, timeout_s=60.0) for caller in callers)
        )
    asked.answered_s, asked.reply = stage.now_s(), decode_reply(replies[0])
    answers = {str(decode_reply(reply)) for reply in replies}
    if len(answers) != 1:
        stage.surprises.append(f"one command got {len(answers)} answers")


@scenario("two trainings report one trial, each with its own numbers", promises=UNTOUCHED)
async def two_trainings_one_trial(stage: Stage) -> None:
    await stage.begin()
    async with stage.fault():
        job_id = stage.others[0]
        begun = await stage.sender.ask(job_id, BeginTrial(hardware=HARDWARE), is_others=True)
        assert isinstance(begun, TrialBegun)
        first = await stage.sender.ask(job_id, report(begun, 1), is_others=True)
        rival = Sender(caller=stage.sender.caller, ledger=Ledger(), rng=stage.rng)  # a refusal is no surprise there
        second = await rival.ask(job_id, report(begun, 1, metric=0.1), is_others=True)
        assert isinstance(first, EpochJudged)
        if not isinstance(second, Problem) or second.type != "conflicting_report":
            stage.surprises.append(f"a second report of an epoch with other numbers was answered {second}")


@scenario(
    "120 lanes of one login on a job of 64 batch sizes, all of them tried",
    promises={**UNTOUCHED, "others_median_ratio": 3.0},
)
async def costly_job(stage: Stage) -> None:
    await _costly(stage, batch_sizes=64)


@scenario(
    "120 lanes of one login on a job of 1000 batch sizes, all of them tried, the limit lifted",
    promises={**UNTOUCHED, "others_median_ratio": 3.0},
)
async def costliest_job(stage: Stage) -> None:
    stage.ledger.patient.add(_COSTLY)  # a second each: two minutes for 120 lanes
    await _costly(stage, batch_sizes=1000, max_batch_sizes=1000)


async def _costly(stage: Stage, *, batch_sizes: int, **settings: Any) -> None:
    spec = {**SPEC, "batch_sizes": [8 * (1 + number) for number in range(batch_sizes)], "default_batch_size": 8}
    await _all_tried(stage, _COSTLY, spec)
    await stage.begin(trainings=0, **settings)
    quiet = await _median_s(stage)
    lanes = lanes_of(_COSTLY, stage.sender, at_once=120, is_others=False)
    async with stage.fault():
        stage.run([replace(lane, spec=spec, pause_s=0.0) for lane in lanes])
        await stage.pause(5.0)
        loud = await _median_s(stage)
    decided = sum(one.is_decided for one in stage.ledger.asked if one.request.job_id == _COSTLY)
    assert decided >= 3, f"only {decided} commands of the costly job were decided"
    stage.figures |= {"others_median_alone_s": quiet, "others_median_s": loud, "others_median_ratio": loud / quiet}


async def _all_tried(stage: Stage, job_id: str, spec: Mapping[str, Any]) -> None:
    """A job each of whose batch sizes has converged once, recorded without a worker in two transactions."""
    patience = Patience(attempt_s=_LONG_S, deciding_s=_LONG_S, total_s=_LONG_S)
    engine = Engine(stage.store, Rules(max_batch_sizes=1000), patience=patience, rule=_as_if_nothing_was_known)

    async def ask(commands: Sequence[Command]) -> list[Reply]:
        requests = [Request(command_id=str(uuid.uuid4()), job_id=job_id, command=command) for command in commands]
        stage.ledger.prepared |= {request.command_id for request in requests}
        return [answer.reply for answer in await engine.execute(requests)]

    await ask([RegisterJob(spec=spec)])
    begun = await ask(
        [BeginTrial(hardware=HARDWARE, batch_size=size, recurrence_id=f"try-{size}") for size in spec["batch_sizes"]]
    )
    costs = [stage.rng.uniform(800.0, 1200.0) for _ in begun]
    await ask(
        [
            report(trial, 1, metric=0.95, time_s=4.0, energy_j=cost)
            for trial, cost in zip(begun, costs, strict=True)
            if isinstance(trial, TrialBegun)
        ]
    )


def _as_if_nothing_was_known(job: Job, command: Command, facts: Facts, context: Context) -> Decision:
    """What is decided before the first trial: with all that is known, two thousand decisions take minutes."""
    new = {number: replace(version, knowledge={}, memories={}) for number, version in job.versions.items()}
    decision = decide(replace(job, versions=new), command, facts, context)
    return replace(decision, job=apply(job, decision.events))


async def _median_s(stage: Stage) -> float:
    """The median time of a decision for lanes of other jobs, for ten seconds [s]."""
    since_s = stage.now_s()
    await stage.pause(10.0)
    waits = [
        (one.answered_s or stage.now_s()) - one.sent_s
        for one in stage.ledger.asked
        if one.is_others and one.sent_s >= since_s and isinstance(one.command, CHANGING)
    ]
    return statistics.median(waits)
