"""The optimizer inside this process: the engine over an SQLite file."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from bso.domain.commands import RegisterJob, Request
from bso.domain.decide import Rules
from bso.domain.errors import Retryable
from bso.domain.identifiers import job_id_for
from bso.domain.policies import PolicyMissing
from bso.domain.replies import Problem, Reply
from bso.storage.embedded import LOCK_WAIT_S, Embedded, open_embedded
from bso_client.errors import Unreachable

_DEFAULT_RULES = Rules()
_PAUSE_S = 0.2  # before a command is offered again to a file that was locked


class EmbeddedTransport:
    """Decides here. Any number of processes of one machine may share the file."""

    def __init__(self, path_or_url: str | Path, *, rules: Rules = _DEFAULT_RULES) -> None:
        self._path_or_url = path_or_url
        self._rules = rules
        self._embedded: Embedded | None = None
        self._opening = asyncio.Lock()
        self._quiet_at_s = 0.0  # until then a thread may wait for the file on behalf of a command that was given up

    async def start(self) -> None:
        """Open the file, making or upgrading it where needed."""
        try:
            await self._opened()
        except Retryable as error:
            raise Unreachable(str(error)) from error

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply to a command; Unreachable when the file stayed locked."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        request = _addressed(request)
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    answers = await (await self._opened()).execute([request])
                return answers[0].reply
            except PolicyMissing as error:
                return Problem(type="policy_missing", title="The policy of the job is not installed", detail=str(error))
            except TimeoutError as error:
                self._quiet_at_s = loop.time() + 3.0 * LOCK_WAIT_S
                raise Unreachable(f"the optimizer's file did not answer within {timeout_s:g} s") from error
            except Retryable as error:
                if loop.time() + _PAUSE_S >= deadline:
                    raise Unreachable(str(error)) from error
            await asyncio.sleep(_PAUSE_S)

    async def close(self) -> None:
        """Close the file. A thread that still waits for it ends first: it needs the event loop for that."""
        await asyncio.sleep(self._quiet_at_s - asyncio.get_running_loop().time())
        embedded, self._embedded = self._embedded, None
        if embedded is not None:
            await embedded.close()

    async def _opened(self) -> Embedded:
        async with self._opening:
            if self._embedded is None:
                self._embedded = await open_embedded(self._path_or_url, rules=self._rules, upgrade=_upgrade)
            return self._embedded


async def _upgrade(url: str) -> None:
    from bso_migrations import upgrade  # Alembic takes its time, and a file that is up to date does not need it

    await upgrade(url)


def _addressed(request: Request) -> Request:
    """A registration without a job's name makes one, as it does for a worker that reads it from the queue."""
    if request.job_id or not isinstance(request.command, RegisterJob):
        return request
    return replace(request, job_id=job_id_for(request.command.job_id_prefix, request.command_id))
