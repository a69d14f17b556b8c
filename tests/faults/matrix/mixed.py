"""Many faults in a row and at once, chosen at random from the seed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress

from sqlalchemy.exc import DBAPIError

from bso.domain.errors import BsoError
from bso_broker.topology import COMMAND_QUEUE
from tests.faults.matrix.of_brokers import delete, purge
from tests.faults.matrix.of_databases import end_a_session
from tests.faults.matrix.scenario import scenario
from tests.faults.matrix.stage import Stage
from tools.private_servers import ServerFailed

Strike = Callable[[Stage], Awaitable[object]]
"""One that finds nothing to strike returns False or 0."""
_STRIKES = 12
_MIXED = {"others_stall_s": 20.0, "others_slowest_s": 30.0}


@scenario("twelve faults at random, up to two at once; servers stay alive", promises=_MIXED)
async def mixed(stage: Stage) -> None:
    await _mixed(stage, [*_GENTLE])


@scenario(
    "twelve faults at random, up to two at once; servers are killed and frozen, too",
    promises=_MIXED,
    needs_private=True,
)
async def mixed_with_servers(stage: Stage) -> None:
    await _mixed(stage, [*_GENTLE, *_OF_SERVERS])


async def _mixed(stage: Stage, strikes: list[Strike]) -> None:
    await stage.begin(workers=3)
    free, of_servers = asyncio.Semaphore(2), asyncio.Lock()
    struck: list[Strike] = []

    async def strike(one: Strike) -> None:
        async with free, of_servers if one in _OF_SERVERS else nullcontext():
            with suppress(BsoError, DBAPIError, ServerFailed, OSError):  # what it needs may be away for another one
                found = await one(stage)
                if found is None or found:
                    struck.append(one)
            await stage.pause(0.2, 1.5)

    async with stage.fault(), asyncio.TaskGroup() as group:
        for _ in range(_STRIKES):
            group.create_task(strike(stage.rng.choice(strikes)))
    stage.figures["strikes"] = len(struck)
    assert len(struck) >= _STRIKES // 2, f"only {len(struck)} of {_STRIKES} faults struck"


async def _kill_a_worker(stage: Stage) -> bool:
    has_several = len(stage.living) > 1
    if has_several:
        stage.kill(stage.rng.choice(stage.living))
    stage.worker()
    return has_several


async def _freeze_a_worker(stage: Stage) -> None:
    victim = stage.rng.choice(stage.living)
    victim.process.send_signal(signal.SIGSTOP)
    await stage.pause(2.0, 15.0)
    if victim.process.poll() is None:
        victim.process.send_signal(signal.SIGCONT)


async def _lock_a_row(stage: Stage) -> None:
    async with stage.store.unit_of_work() as foreign:
        await foreign.lock([stage.harmed], creating=())
        await stage.pause(1.0, 8.0)


async def _end_sessions(stage: Stage) -> int:
    ended = 0
    for _ in range(8):
        ended += await end_a_session(stage)
        await stage.pause(0.05, 0.3)
    return ended


async def _close_connections(stage: Stage) -> int:
    return await asyncio.to_thread(stage.pair.management.close_connections, stage.amqp_url)


async def _delete_the_queue(stage: Stage) -> None:
    await delete(stage, "queues", COMMAND_QUEUE)


async def _kill_a_training(stage: Stage) -> bool:
    living = [one for one in stage.trainings if one.process.poll() is None]
    if len(living) < 2:
        return False
    stage.rng.choice(living).process.kill()
    stage.train()
    return True


async def _kill_the_database(stage: Stage) -> None:
    assert stage.pair.database is not None
    stage.pair.database.kill()
    await stage.pause(0.0, 3.0)
    await asyncio.to_thread(stage.pair.database.start)


async def _freeze_the_database(stage: Stage) -> None:
    assert stage.pair.database is not None
    stage.pair.database.freeze()
    await stage.pause(0.5, 6.0)
    stage.pair.database.thaw()


async def _freeze_the_broker(stage: Stage) -> None:
    assert stage.pair.rabbitmq is not None
    stage.pair.rabbitmq.freeze()
    await stage.pause(0.5, 6.0)
    stage.pair.rabbitmq.thaw()


_GENTLE = (
    _kill_a_worker,
    _freeze_a_worker,
    _lock_a_row,
    _end_sessions,
    _close_connections,
    purge,
    _delete_the_queue,
    _kill_a_training,
)
_OF_SERVERS = (_kill_the_database, _freeze_the_database, _freeze_the_broker)
