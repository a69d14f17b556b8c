"""A link whose connection breaks: what it says, and that it can be stopped meanwhile."""

import asyncio
import logging

import aiormq
import pytest
from typing_extensions import override

from bso_broker.connection import BrokerAddress
from bso_broker.errors import ConnectionLost
from bso_broker.session import BrokerSession, Link
from tests.servers import PATIENCE_S

ADDRESS = BrokerAddress(url="amqp://guest:guest@nowhere.invalid/")


@pytest.mark.parametrize("error", [None, ConnectionLost("broken"), aiormq.exceptions.AMQPConnectionError("broken")])
async def test_a_link_stops_though_its_cancellation_was_taken_for_something_else(error: Exception | None) -> None:
    opening = asyncio.Event()
    swallowed: list[bool] = []
    closed: list[bool] = []

    class Deaf(BrokerSession):
        """Takes being cancelled for something else, once, as aiormq does when the connection breaks just then."""

        @override
        async def open(self) -> None:
            opening.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed.append(True)
                if error is not None:
                    raise error from None

        @override
        async def close(self) -> None:
            closed.append(True)
            await super().close()

    link = Link(lambda: Deaf(ADDRESS), name="deaf link")
    link.start()
    await opening.wait()
    async with asyncio.timeout(PATIENCE_S):
        await link.stop()
    assert (swallowed, closed) == ([True], [True])
    assert link.current is None
    assert not link.connected.is_set()


async def test_a_link_that_breaks_again_and_again_for_one_reason_warns_of_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    causes = ["no exchange", "no exchange", "no exchange", "not permitted"]
    opened = asyncio.Event()

    class Brief(BrokerSession):
        """Ends as soon as it has begun, as one does whose exchange is missing; the last one lives."""

        @override
        async def open(self) -> None:
            if causes:
                self.fail(ConnectionLost(causes.pop(0)))
            else:
                opened.set()

    link = Link(lambda: Brief(ADDRESS), name="brief link")
    with caplog.at_level(logging.WARNING, logger="bso_broker.session"):
        link.start()
        async with asyncio.timeout(PATIENCE_S):
            await opened.wait()
        await link.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "the brief link lost the broker: no exchange",
        "the brief link lost the broker: not permitted",
    ]
