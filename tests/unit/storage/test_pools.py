"""What pools of connections say."""

import asyncio
import logging
from pathlib import Path

import pytest
from sqlalchemy import text

from bso.storage.connections import ConnectionLimits, create_engine
from bso.storage.urls import sqlite_url


async def test_that_closing_was_cancelled_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(sqlite_url(tmp_path / "bso.sqlite"), ConnectionLimits())
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
    logger = logging.getLogger(f"{type(engine.sync_engine.pool).__module__}.AsyncAdaptedQueuePool.bso")
    assert logger is engine.sync_engine.pool.logger, "what the pool logs is filtered"
    closing = asyncio.create_task(engine.dispose())
    await asyncio.sleep(0)  # noqa: TID251 - closing has begun then
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [record.getMessage() for record in caplog.records if record.name == logger.name] == []
    try:
        raise OSError("the connection broke")
    except OSError:
        logger.exception("closing")
    assert [record.getMessage() for record in caplog.records if record.name == logger.name] == ["closing"]
