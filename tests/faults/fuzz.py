"""``python -m tests.faults.fuzz``: messages of all kinds of nonsense among good ones, and what became of the workers.

Every message is a command that was good before something about it was changed at random: bytes, fields, types, sizes,
AMQP properties. Meanwhile a job trains, so that it shows whether others still get their answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import aio_pika
from aio_pika.abc import AbstractExchange

from bso.domain.commands import (
    BeginTrial,
    Command,
    EpochCostProbe,
    FinishTrial,
    RegisterJob,
    RenewLease,
    ReportEpoch,
    ReportEpochCosts,
    Request,
)
from bso.domain.trial import Outcome
from bso.schema.codec import decode_reply, encode_command
from bso_broker.addresses import REPLY_PREFIX, reply_id
from bso_broker.bundles import BUNDLE, MOST_PARTS, Part, bundle_of, parts_of
from bso_broker.topology import COMMAND_KEY, COMMAND_QUEUE, COMMANDS
from bso_workers.metrics import REASONS
from tests.faults.matrix.auditing import audit
from tests.faults.matrix.pair import Pair, running_pair
from tests.faults.matrix.result import Result
from tests.faults.matrix.stage import Stage, new_stage
from tests.integration.workers.processes import WorkerProcess
from tests.integration.workers.recurrences import HARDWARE, SPEC
from tests.servers import eventually_async

MOST_MEMORY_KB = 300_000
LONGEST_STALL_S = 30.0
_IN_FLIGHT = 500
_MOST_WAITING = 1000
_UUID_LENGTH = 36
_NONSENSE: Sequence[Any] = (
    *(None, True, -1, 0, 1e308, -1e-308, 10**30, [], {}, [[[[]]]], {"a": {"b": {}}}, [1] * 500),
    *("", "x" * 5000, "\x00", "\ud800", "nan", "2026-13-45T99:00:00Z", "' OR 1=1; --", "../../etc/passwd", "{{7*7}}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Send, wait, look; 1: something broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="how many (200000)")
    parser.add_argument("--seed", type=int, default=None, help="what is chosen at random (default: a new one)")
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    sys.stderr.write(f"seed {seed}\n")
    with running_pair("mariadb") as pair:
        found = asyncio.run(_fuzzed(pair, seed, options.messages))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 1 if found["unexpected"] else 0


async def _fuzzed(pair: Pair, seed: int, messages: int) -> dict[str, Any]:
    async with new_stage(pair, seed) as stage:
        await stage.begin(trainings=1)
        async with stage.fault():
            answers = await _flood(stage, messages)
        await stage.all_go_on()
        await stage.end()
        peaks_kb = [_peak_kb(worker.process.pid) for worker in stage.living]
        poison = sum(worker.metric("bso_commands_total", result="poison") for worker in stage.living)
        result = Result(scenario="fuzz", seed=seed, broker=pair.broker_name, database=pair.database_name)
        stage.dead_letters = sum(int(_dead_letters(worker)) for worker in stage.living)
        await audit(stage, result)
    unexpected = [*result.unexpected]
    if max(peaks_kb) > MOST_MEMORY_KB:
        unexpected.append(f"a worker took {max(peaks_kb)} kB of memory, at most {MOST_MEMORY_KB} were expected")
    stall_s = stage.ledger.others_stall_s(since_s=stage.struck_s, until_s=stage.recovered_s)
    if stall_s > LONGEST_STALL_S:
        unexpected.append(f"others waited for {stall_s:.1f} s, at most {LONGEST_STALL_S:g} s were expected")
    if poison:
        unexpected.append(f"rules failed over {poison:g} messages")
    return {
        "seed": seed,
        "messages": messages,
        "answers": dict(answers.most_common()),
        "peaks_kb": peaks_kb,
        "others_stall_s": round(stall_s, 3),
        "unexpected": unexpected,
    }


def _dead_letters(worker: WorkerProcess) -> float:
    """How many messages a worker has set aside, and kept."""
    reasons = set(REASONS) - {"not_kept"}
    return sum(worker.metric("bso_dead_letters_total", reason=reason) for reason in reasons)


async def _flood(stage: Stage, messages: int) -> Counter[str]:
    """Send all messages, while few wait in the queue of commands; what was answered, by kind.

    Whatever can be answered must be: what names our queue and a correlation of its own, and does not expire.
    """
    answers: Counter[str] = Counter()
    unanswered: set[str] = set()
    rng = random.Random(stage.rng.getrandbits(64))
    connection = await aio_pika.connect(stage.amqp_url)
    async with connection:
        channel = await connection.channel()
        replies = await channel.declare_queue(f"{REPLY_PREFIX}guest.{uuid.uuid4().hex}", exclusive=True)

        async def on_reply(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            is_bundle = message.content_type == BUNDLE
            for correlation_id, body in (
                parts_of(message.body) if is_bundle else [(message.correlation_id, message.body)]
            ):
                reply = decode_reply(body)
                answers[getattr(reply, "type", type(reply).__name__)] += 1
                unanswered.discard(correlation_id or "")

        await replies.consume(on_reply, no_ack=True)
        exchange = await channel.get_exchange(COMMANDS, ensure=False)
        counter = await connection.channel()

        async def waits_at_most(messages: int) -> bool:
            queue = await counter.declare_queue(COMMAND_QUEUE, passive=True)
            return (queue.declaration_result.message_count or 0) <= messages

        free = asyncio.Semaphore(_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for number in range(messages):
                if number % _IN_FLIGHT == 0:
                    await eventually_async(partial(waits_at_most, _MOST_WAITING), timeout_s=600.0, what="a short queue")
                await free.acquire()
                message = _message(rng, replies.name)
                is_own = message.reply_to == replies.name and len(message.correlation_id or "") == _UUID_LENGTH
                if is_own and message.expiration is None:
                    unanswered |= {reply_id(correlation_id, message.user_id) for correlation_id in _awaited(message)}
                group.create_task(_send(exchange, message, free))
                if number % 20_000 == 0:
                    sys.stderr.write(f"{number} sent, {sum(answers.values())} answered\n")
        await eventually_async(partial(waits_at_most, 0), timeout_s=600.0, what="an empty queue of commands")
        try:
            await eventually_async(lambda: not unanswered, what="answers")
        except AssertionError:
            stage.surprises.append(f"{len(unanswered)} messages were not answered: {sorted(unanswered)[:5]}")
    return answers


def _awaited(message: aio_pika.Message) -> Sequence[str]:
    """What the replies to a message are known by: those to all that a bundle holds, if it can be read."""
    if message.content_type == BUNDLE:
        with suppress(ValueError):
            return [command_id for command_id, _ in parts_of(message.body)]
    return [message.correlation_id or ""]


async def _send(exchange: AbstractExchange, message: aio_pika.Message, free: asyncio.Semaphore) -> None:
    try:
        with suppress(aio_pika.exceptions.DeliveryError):
            await exchange.publish(message, COMMAND_KEY)
    finally:
        free.release()


def _message(rng: random.Random, reply_to: str) -> aio_pika.Message:
    """A message with something wrong about it, mostly."""
    command_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
    job_id = f"fuzzed-{rng.randrange(50)}"
    request = Request(command_id=command_id, job_id=job_id, command=_command(rng))
    body = rng.choice(_CHANGES)(rng, encode_command(request))
    is_bundle = rng.random() < 0.1
    if is_bundle:
        body = _bundle(rng, job_id, (command_id, body))
    properties: dict[str, Any] = {"message_id": command_id, "correlation_id": command_id, "reply_to": reply_to}
    for name in tuple(properties):
        if rng.random() < 0.05:
            properties[name] = rng.choice(["", "x" * 200, "bso.reply.somebody.else", None])
    if rng.random() < 0.1:
        properties["headers"] = {"traceparent": rng.choice(["", "x" * 300, 7, None]), "x": rng.choice([1.5, [1], {}])}
    if rng.random() < 0.95:
        properties["user_id"] = "guest"
    if rng.random() < 0.02:
        properties["expiration"] = rng.choice([0.001, 60])
    return aio_pika.Message(body, content_type=BUNDLE if is_bundle else None, **properties)


def _bundle(rng: random.Random, job_id: str, first: Part) -> bytes:
    """A command among others, which may have line breaks in it, in a bundle that may be too large."""
    parts = [first]
    for _ in range(rng.choice([0, 1, 3, MOST_PARTS - 1, MOST_PARTS])):
        command_id = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        request = Request(command_id=command_id, job_id=job_id, command=_command(rng))
        change = rng.choice(_CHANGES) if rng.random() < 0.2 else _as_it_is
        parts.append((command_id, change(rng, encode_command(request))))
    body = bundle_of(parts)
    return body if rng.random() < 0.9 else _other_bytes(rng, body)


def _command(rng: random.Random) -> Command:
    number, trial_id = rng.randrange(1, 30), str(uuid.UUID(int=rng.getrandbits(128), version=4))
    kind = rng.randrange(6)
    if kind == 0:
        return RegisterJob(spec=SPEC)
    if kind == 1:
        return BeginTrial(hardware=HARDWARE, recurrence_id=f"night-{rng.randrange(20)}")
    if kind == 2:
        return FinishTrial(trial_number=number, trial_id=trial_id, outcome=rng.choice(list(Outcome)))
    if kind == 3:
        return RenewLease(trial_number=number, trial_id=trial_id)
    if kind == 4:
        probe = EpochCostProbe(batch_size=32, time_s=rng.random(), energy_j=rng.uniform(-1, 9), variance=rng.random())
        return ReportEpochCosts(trial_number=number, trial_id=trial_id, probes=(probe,), time_s=rng.random())
    return ReportEpoch(
        trial_number=number, trial_id=trial_id, epoch=rng.uniform(-1, 9), time_s=rng.random(), energy_j=None, metric=0.5
    )


def _as_it_is(_rng: random.Random, body: bytes) -> bytes:
    return body


def _other_bytes(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randrange(1, 6)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut_off(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randrange(len(body))]


def _other_values(rng: random.Random, body: bytes) -> bytes:
    parsed = json.loads(body)
    for _ in range(rng.randrange(1, 4)):
        place: Any = parsed
        while isinstance(place, dict) and place:
            name = rng.choice(list(place))
            if not isinstance(place[name], dict) or rng.random() < 0.3:
                if rng.random() < 0.2:
                    del place[name]
                else:
                    place[name] = deepcopy(rng.choice(_NONSENSE))  # the next change may be inside it
                break
            place = place[name]
    return json.dumps(parsed).encode("utf-8", "surrogatepass")


def _noise(rng: random.Random, _body: bytes) -> bytes:
    return rng.randbytes(rng.randrange(2000))


def _nested(rng: random.Random, _body: bytes) -> bytes:
    depth = rng.randrange(1, 20_000)
    return b'{"body":' + b"[" * depth + b"]" * depth + b"}"


_CHANGES: Sequence[Callable[[random.Random, bytes], bytes]] = (
    _as_it_is,
    _as_it_is,
    _other_bytes,
    _cut_off,
    _other_values,
    _other_values,
    _other_values,
    _noise,
    _nested,
)


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    sys.exit(main())
