"""Zeus' batch size server as its documentation starts it, by uvicorn; runs in the environment of requirements.txt.

The port is the argument, ``ZEUS_BSO_DATABASE_URL`` the database, whose tables are created first.
"""

import asyncio
import json
import logging
import sys
from socket import socket
from typing import Any

import uvicorn
from sqlalchemy.ext.asyncio import create_async_engine
from zeus.optimizer.batch_size.server.config import settings
from zeus.optimizer.batch_size.server.database.schema import Base
from zeus.optimizer.batch_size.server.router import app


async def create_tables() -> None:
    """Create what its migrations would."""
    engine = create_async_engine(settings.database_url)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


class Server(uvicorn.Server):
    """Says when it listens."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        sys.stderr.write(json.dumps({"action": "started", "port": self.config.port}) + "\n")


if __name__ == "__main__":
    logging.getLogger("zeus").setLevel(logging.WARNING)  # a line for each report would count against it
    asyncio.run(create_tables())
    # Connections are kept while the other paths are measured.
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "timeout_keep_alive": 3600}
    Server(uvicorn.Config(app, port=int(sys.argv[1]), **quiet)).run()
