"""The optimizer that a gateway asks: through a broker, or in this process over a SQLite file."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.commands import Request
from bso.domain.decide import Rules
from bso.domain.errors import BsoError, Misconfigured, Retryable
from bso.domain.policies import PolicyMissing
from bso.domain.replies import Problem, Reply
from bso.service.queries import Asked, CheckedToken, CheckToken, Page, ShowOperation, decode_page, encode_query
from bso.service.query_answers import answered
from bso_broker.connection import BrokerAddress, connect
from bso_broker.dead_letters import DeadLetters
from bso_broker.declaration import depth_of
from bso_broker.messages import QueueDepth
from bso_broker.topology import COMMAND_QUEUE, DEAD_LETTERS, PARKED_FOR_S, QUERY_QUEUE
from bso_client.errors import Unreachable
from bso_client.transports.broker import BrokerTransport
from bso_client.transports.embedded import Embedded, open_embedded

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_Waiting = tuple[Request, asyncio.Future[Reply]]
_RULES = Rules()
_TROUBLE_S = 15.0
_LOOK_S, _LOOK_EVERY_S = 2.0, 5.0
_NO_TOKEN = CheckToken(token_id="0" * 16, digest="0" * 64)
_MOST_AT_ONCE = 64
"""Commands that one transaction decides: with fewer, a slow disk bounds all; with more, the first one waits longer."""


class Optimizer(Protocol):
    """Decides commands. Any number may be under way at once."""

    async def start(self) -> None:
        """Get ready. Raises Misconfigured where waiting cannot help."""
        ...

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply to a command. Raises Unreachable if none came in time, Misconfigured where waiting cannot help."""
        ...

    async def query(self, asked: Asked, *, timeout_s: float) -> Page | Problem:
        """The answer to a query. Raises as ``call``."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why commands cannot be decided at present; None: nothing is known to prevent it."""
        ...

    async def queues(self) -> Mapping[str, QueueDepth | None]:
        """What waits in the broker's queues; None: the login may not look at it, or it is missing. Empty: no broker."""
        ...

    def dead_letters(self) -> DeadLetters:
        """The commands that no worker could handle. Raises Misconfigured where there is no broker."""
        ...

    async def close(self) -> None:
        """Let go of everything; calls under way raise Unreachable."""
        ...


def optimizer_of(url: str, *, operator_url: str | None = None) -> Optimizer:
    """The optimizer of an address, not started yet; ``operator_url``: see BrokerOptimizer."""
    return SqliteOptimizer(url) if url.startswith("sqlite") else BrokerOptimizer(url, operator_url=operator_url)


class BrokerOptimizer:
    """Workers behind a broker decide. Whose commands the gateway sends, and that it is one, is a setting of theirs.

    Dead letters and queues are an operator's login to see, where an ``operator_url`` is given.
    """

    def __init__(self, url: str, *, operator_url: str | None = None) -> None:
        self._address = BrokerAddress(url=url)
        self._operator = BrokerAddress(url=operator_url or url)
        self._transport = BrokerTransport(url, bundles=True)
        self._looking = asyncio.Lock()
        self._queues: tuple[float, Mapping[str, QueueDepth | None]] = (-math.inf, {})
        self._refusal: str | None = None
        self._introducing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to connect; calls wait for the connection."""
        await self._transport.start()
        self._introducing = asyncio.create_task(self._introduce(), name="gateway introduction")

    async def _introduce(self) -> None:
        """Ask again and again what workers answer to gateways alone: what they take may be set otherwise meanwhile.

        It is also how a gateway without requests learns that the broker takes no messages, which RabbitMQ says only to
        connections that publish.
        """
        while True:
            asked = Asked(query=_NO_TOKEN, query_id=str(uuid.uuid4()))
            try:
                found = await self.query(asked, timeout_s=_LOOK_EVERY_S)
            except BsoError:  # nobody is there: calls say so
                pass
            else:
                if isinstance(found, CheckedToken):
                    self._refusal = None
                elif isinstance(found, Problem) and not found.is_retryable and found.detail != self._refusal:
                    self._refusal = found.detail
                    _log.error("workers do not take this gateway", action="not_a_gateway", reason=found.detail)
            await asyncio.sleep(_LOOK_EVERY_S)

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply of a worker."""
        return await self._transport.call(request, timeout_s=timeout_s)

    async def query(self, asked: Asked, *, timeout_s: float) -> Page | Problem:
        """The answer of a worker."""
        message = await self._transport.query(encode_query(asked), query_id=asked.query_id, timeout_s=timeout_s)
        return decode_page(message)

    @property
    def trouble(self) -> str | None:
        """What is known to stand in the way: no broker, one that took no message lately, workers that refuse it."""
        if not self._transport.is_connected:
            return f"the broker at {self._address} is not connected"
        return self._transport.obstacle or self._refusal

    async def queues(self) -> Mapping[str, QueueDepth | None]:
        """What waits in the queues of commands, of queries and of dead letters, as it was 5 s ago at most."""
        clock = asyncio.get_running_loop().time
        async with self._looking:
            looked_at_s, found = self._queues
            if clock() - looked_at_s > _LOOK_EVERY_S:
                found = await self._look()
                self._queues = clock(), found
        return found

    async def _look(self) -> Mapping[str, QueueDepth | None]:
        found: dict[str, QueueDepth | None] = dict.fromkeys((COMMAND_QUEUE, *PARKED_FOR_S, QUERY_QUEUE, DEAD_LETTERS))
        try:
            connection = await connect(self._operator, name="bso gateway looks at queues")
        except BsoError as error:
            _log.warning("queues cannot be looked at", action="queues_hidden", reason=str(error))
            return found
        try:
            for queue in found:
                try:
                    async with asyncio.timeout(_LOOK_S):
                        found[queue] = await depth_of(connection, queue)
                except (BsoError, TimeoutError):
                    found[queue] = None
        finally:
            await connection.close()
        return found

    def dead_letters(self) -> DeadLetters:
        """Over a connection of their own."""
        return DeadLetters(self._operator)

    async def close(self) -> None:
        """Disconnect."""
        if self._introducing is not None:
            self._introducing.cancel()
        await self._transport.close()


class SqliteOptimizer:
    """This process decides. What arrives while one transaction is under way goes into the next one together."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._embedded: Embedded | None = None
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None
        self._trouble: tuple[float, str] | None = None
        self._is_closing = False

    async def start(self) -> None:
        """Open the file, making or upgrading it where needed."""
        self._embedded = await open_embedded(self._url)
        self._deciding = asyncio.create_task(self._decide(self._embedded), name="gateway decisions")

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply, once it is on the disk."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((replace(request, user=request.on_behalf_of, is_from_gateway=True), future))
        self._arrived.set()
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            why = "" if self.trouble is None else f": {self.trouble}"
            raise Unreachable(f"{self._file} did not answer within {timeout_s:g} s{why}") from error

    async def query(self, asked: Asked, *, timeout_s: float) -> Page | Problem:
        """What the file holds."""
        assert self._embedded is not None
        try:
            async with asyncio.timeout(timeout_s):
                is_for_operators = isinstance(asked.query, ShowOperation)  # the gateway has checked the token
                asked = replace(asked, user=None if is_for_operators else asked.on_behalf_of)
                return decode_page(await answered(self._embedded.store, asked, rules=_RULES))
        except (TimeoutError, Retryable) as error:
            words = str(error) or f"nothing came within {timeout_s:g} s"
            raise Unreachable(f"{self._file} did not answer: {words}") from error

    @property
    def _file(self) -> str:
        return "the optimizer's file" if self._embedded is None else f"the optimizer's file {self._embedded.path}"

    @property
    def trouble(self) -> str | None:
        """Why the last transaction failed, if it did a short while ago: whether the next one does, it has to show."""
        if self._trouble is None or asyncio.get_running_loop().time() > self._trouble[0] + _TROUBLE_S:
            return None
        return self._trouble[1]

    async def queues(self) -> Mapping[str, QueueDepth | None]:
        """There is no broker."""
        return {}

    def dead_letters(self) -> DeadLetters:
        """There are none."""
        raise Misconfigured("there is no broker, and so there are no dead letters")

    async def close(self) -> None:
        """Close the file, after the transaction that is under way."""
        deciding, self._deciding = self._deciding, None
        if deciding is not None:
            self._is_closing = True
            self._arrived.set()
            await deciding
        for _, future in self._waiting:
            _refuse(future, Retryable("the gateway was closed"))
        embedded, self._embedded = self._embedded, None
        if embedded is not None:
            await embedded.close()

    async def _decide(self, embedded: Embedded) -> None:
        while not self._is_closing:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting and not self._is_closing:
                batch, self._waiting = self._waiting[:_MOST_AT_ONCE], self._waiting[_MOST_AT_ONCE:]
                await self._answer(embedded, batch)

    async def _answer(self, embedded: Embedded, batch: Sequence[_Waiting]) -> None:
        """Decide together; where that fails, each by itself: the reason may lie in one of them.

        What nobody waits for any more is not decided.
        """
        batch = [one for one in batch if not one[1].done()]
        if not batch:
            return
        try:
            answers = await embedded.execute([request for request, _ in batch])
        except Exception as error:  # noqa: BLE001  # the next transaction may succeed
            if len(batch) > 1:
                for one in batch:
                    await self._answer(embedded, [one])
                return
            self._note_failure(error)
            _refuse(batch[0][1], error)
            return
        self._trouble = None
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer.reply)

    def _note_failure(self, error: Exception) -> None:
        if isinstance(error, PolicyMissing):
            return
        if not isinstance(error, BsoError):
            _log.error("an unforeseen error of a transaction", action="unforeseen_error", exc_info=error)
        self._trouble = (asyncio.get_running_loop().time(), str(error) or type(error).__name__)


def _refuse(future: asyncio.Future[Reply], error: Exception) -> None:
    if future.done():
        return
    if isinstance(error, PolicyMissing):
        title = "The policy of the job is not installed"
        future.set_result(Problem(type="policy_missing", title=title, detail=str(error)))
    elif isinstance(error, Misconfigured):
        future.set_exception(error)
    elif isinstance(error, Retryable):
        future.set_exception(Unreachable(str(error)))
    else:
        future.set_exception(Unreachable("an unforeseen error, which stands in the log of the gateway"))
