"""A client that holds a job's lock and falls silent loses it: frozen, or behind a half-open connection."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from bso.domain.replies import TrialBegun
from bso.service.engine import Engine
from bso.service.errors import StoreLost
from bso.storage import SqlStore
from bso_migrations import upgrade
from tests.contract.storage.job_requests import (
    JOB,
    ask,
    assert_log_equals_tables,
    beginning,
    registration,
)
from tests.integration.storage.conftest import LIMITS, OpenAt
from tests.servers import PATIENCE_S, TcpProxy
from tests.servers.fixtures import DATABASES

pytestmark = pytest.mark.parametrize("database_url", [kind for kind in DATABASES if kind != "sqlite"], indirect=True)
QUICK = replace(LIMITS, silence_s=2.0, lock_wait_s=PATIENCE_S)


@pytest.fixture
async def registered(database_url: str, open_at: OpenAt) -> SqlStore:
    """A store with a job in it."""
    await upgrade(database_url)
    store = open_at(database_url, QUICK)
    await ask(Engine(store), registration())
    return store


async def test_a_frozen_process_loses_the_lock(registered: SqlStore, database_url: str) -> None:
    program = [sys.executable, "-m", "tests.integration.storage.frozen_holder", database_url, "2"]
    holder = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - waited for in a thread
    try:
        _, status = await asyncio.to_thread(os.waitpid, holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended before it held the lock"
        [answer] = await ask(Engine(registered), beginning())
        assert isinstance(answer.reply, TrialBegun)
        holder.send_signal(signal.SIGCONT)
        said, _ = await asyncio.to_thread(holder.communicate, timeout=PATIENCE_S)
    finally:
        holder.kill()
    assert said == "StoreLost"
    await assert_log_equals_tables(registered)


async def test_behind_a_wire_that_leads_nowhere_the_lock_is_lost(
    registered: SqlStore, database_url: str, open_at: OpenAt, tcp_proxy: Callable[[str], TcpProxy]
) -> None:
    proxy = tcp_proxy(database_url)

    async def go_on_with_the_lock_of_others() -> None:
        async with open_at(proxy.url, QUICK).unit_of_work() as uow:
            await uow.lock([JOB], creating=())
            proxy.stall()
            [answer] = await ask(Engine(registered), beginning())
            assert isinstance(answer.reply, TrialBegun)
            proxy.restore()
            await uow.recollect(["00000000-0000-4000-8000-000000000001"])

    with pytest.raises(StoreLost):
        await go_on_with_the_lock_of_others()
    await assert_log_equals_tables(registered)
