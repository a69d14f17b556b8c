"""A RabbitMQ per test, and what closes in the end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from bso_broker.rabbit import RabbitBroker


@pytest.fixture
async def cleaning() -> AsyncIterator[AsyncExitStack]:
    """Closes at the test's end what the test has started."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def broker(amqp_url: str) -> AsyncIterator[RabbitBroker]:
    """A new virtual host with everything declared."""
    async with RabbitBroker(amqp_url) as broker:
        await broker.declare()
        yield broker
