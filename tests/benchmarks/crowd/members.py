"""``python -m tests.benchmarks.crowd.members``: hundreds of trainings in one process, each on a connection of its own.

Each is a whole client: lease, outbox, journal. One line of JSON on standard input asks, one on standard output answers.
"""

import asyncio
import json
import logging
import random
import sys
import time
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from bso.domain.commands import RenewLease, ReportEpoch, Request
from bso.domain.replies import LeaseRenewed, Problem, Reply, TrialBegun
from bso_cli.demo.train import CpuTime
from bso_client import AsyncBatchSizeOptimizer
from bso_client.hardware import cpu_kind
from bso_client.options import OptimizerOptions
from bso_client.transports import open_transport
from tests.benchmarks.trials import endless_spec

OPENING_AT_ONCE = 8
"""Trainings of one process that begin at the same time."""


@dataclass(slots=True, kw_only=True)
class Member:
    """What one training knows of itself. Times are the monotonic clock's [s], which all processes share."""

    job_id: str
    trial_number: int = 0
    trial_id: str = ""
    lease_s: float = 0.0
    renewals: int = 0
    renewed_s: float = 0.0
    reports: int = 0
    """Evaluations that the training has made."""
    answered: int = 0
    """Reports that the optimizer has answered, in time or late."""
    answered_s: float = 0.0


class NotingTransport:
    """The client's own transport; notes what comes back over it."""

    def __init__(self, url: str, member: Member) -> None:
        self._transport = open_transport(url)
        self._member = member

    async def start(self) -> None:
        """Start the transport."""
        await self._transport.start()

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The transport's reply, noted."""
        reply = await self._transport.call(request, timeout_s=timeout_s)
        member = self._member
        if isinstance(reply, TrialBegun):
            member.trial_number, member.trial_id, member.lease_s = reply.trial_number, reply.trial_id, reply.lease_s
        elif isinstance(reply, LeaseRenewed) and isinstance(request.command, RenewLease):
            member.renewals += 1
            member.renewed_s, member.lease_s = time.monotonic(), reply.lease_s
        elif isinstance(request.command, ReportEpoch) and not isinstance(reply, Problem):
            member.answered += 1
            member.answered_s = time.monotonic()
        return reply

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()


class Connections(logging.Handler):
    """Counts connections by what the library logs of them."""

    def __init__(self) -> None:
        super().__init__()
        self.made_s: list[float] = []
        self.failed_s: list[float] = []
        self.lost = 0
        library = logging.getLogger("bso_broker")
        library.setLevel(logging.DEBUG)
        library.addHandler(self)
        library.propagate = False

    @override
    def emit(self, record: logging.LogRecord) -> None:
        match getattr(record, "action", None):
            case "broker_connected":
                self.made_s.append(time.monotonic())
            case "broker_unreachable" | "connecting_failed":
                self.failed_s.append(time.monotonic())
            case "broker_connection_lost":
                self.lost += 1
            case _:
                pass


class Members:
    """The trainings of this process."""

    def __init__(self, url: str, state_dir: Path, job_ids: list[str]) -> None:
        self._url = url
        self._state_dir = state_dir
        self._connections = Connections()
        self._opening = asyncio.Semaphore(OPENING_AT_ONCE)
        self._members = [Member(job_id=job_id) for job_id in job_ids]
        self._wanted: list[asyncio.Queue[float]] = [asyncio.Queue() for _ in job_ids]

    async def train(self) -> None:
        """Train for ever, and answer meanwhile."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer())
            for member, wanted in zip(self._members, self._wanted, strict=True):
                group.create_task(self._train(member, wanted))

    async def _train(self, member: Member, wanted: asyncio.Queue[float]) -> None:
        options: OptimizerOptions = {
            "url": self._url,
            "transport": NotingTransport(self._url, member),
            "state_dir": self._state_dir,
            "hardware": cpu_kind(10.0),
            "monitor": CpuTime(),
            "unreachable_timeout": 600.0,
        }
        async with (
            AsyncBatchSizeOptimizer(endless_spec(member.job_id), **options) as bso,
            aclosing(bso.trials()) as trials,
        ):
            async with self._opening:
                trial = await anext(trials)
            async with trial:
                while True:
                    await asyncio.sleep(await wanted.get())
                    member.reports += 1
                    await trial.on_evaluate(0.1)

    async def _answer(self) -> None:
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            asked: dict[str, Any] = json.loads(line)
            if "report_within_s" in asked:
                for wanted in self._wanted:
                    wanted.put_nowait(random.uniform(0.0, asked["report_within_s"]))
            sys.stdout.write(json.dumps(self._known()) + "\n")
            sys.stdout.flush()
        sys.exit()  # the process that sent the request has ended

    def _known(self) -> dict[str, Any]:
        connections = self._connections
        return {
            "connected": len(connections.made_s) - connections.lost,
            "made_s": connections.made_s,
            "failed_s": connections.failed_s,
            "members": list(map(asdict, self._members)),
        }


def main() -> None:
    """Train: the arguments are the broker's URL, the folder for journals, and the trainings' jobs."""
    url, state_dir, *job_ids = sys.argv[1:]
    asyncio.run(Members(url, Path(state_dir), job_ids).train())


if __name__ == "__main__":
    main()
