"""A process that freezes while it holds the lock of a job. Arguments: the database, and silence_s.

Thawed, it goes on with its transaction, and says on standard output what came of it.
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace

from bso.domain.errors import BsoError
from bso.storage import open_store
from bso.storage.connections import ConnectionLimits
from tests.contract.storage.job_requests import JOB


async def main(url: str, silence_s: float) -> None:
    store = open_store(url, limits=replace(ConnectionLimits(), silence_s=silence_s))
    try:
        async with store.unit_of_work() as uow:
            await uow.lock([JOB], creating=())
            os.kill(os.getpid(), signal.SIGSTOP)
            await uow.recollect(["00000000-0000-4000-8000-000000000001"])
    except BsoError as error:
        sys.stdout.write(type(error).__name__)
    else:
        sys.stdout.write("went on")
    finally:
        await store.close()


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
