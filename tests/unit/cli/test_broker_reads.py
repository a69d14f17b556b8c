"""Queries through a broker, as the command line asks them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from bso.domain.decide import Rules
from bso.domain.replies import Problem
from bso.service.memory import InMemoryStore
from bso.service.queries import decode_query, encode_refusal
from bso.service.query_answers import answered
from bso_cli.broker_reads import BrokerReads
from bso_cli.refusals import CommandRefused

NOT_NOW = Problem(type="not_now", title="Not now", detail="ask again later", is_retryable=True)


class Busy:
    """Answers queries from an empty store, the first ``times`` of them with a problem."""

    def __init__(self, times: int, problem: Problem = NOT_NOW) -> None:
        self._times = times
        self._problem = problem
        self._store = InMemoryStore(lambda: datetime.now(UTC))
        self.calls = 0

    async def call(self, body: bytes, **_: Any) -> bytes:
        """The answer to a query."""
        self.calls += 1
        if self.calls <= self._times:
            return encode_refusal(self._problem)
        return await answered(self._store, decode_query(body, user="alice"), rules=Rules())


async def test_a_query_that_cannot_be_answered_now_is_asked_again() -> None:
    busy: Any = Busy(2)
    assert await BrokerReads(busy).overviews() == []
    assert busy.calls == 3


async def test_but_not_for_ever() -> None:
    busy: Any = Busy(1000)
    with pytest.raises(CommandRefused, match="ask again later"):
        await BrokerReads(busy).overviews()
    assert 3 < busy.calls < 10


async def test_what_asking_again_cannot_help_is_asked_once() -> None:
    busy: Any = Busy(1000, Problem(type="not_owner", title="No", detail="it is another's"))
    with pytest.raises(CommandRefused, match="it is another's"):
        await BrokerReads(busy).overviews()
    assert busy.calls == 1
