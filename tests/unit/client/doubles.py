"""An optimizer within reach of a test, and a meter that measures what it is given."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bso.domain.commands import Command, Request
from bso.domain.decide import Rules
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import Problem, Reply
from bso.domain.trial import Trial
from bso.schema.codec import decode_command, encode_command
from bso.service.engine import Engine
from bso.service.leases import expiry_of
from bso.service.memory import InMemoryStore
from bso_client import JobSpec, Unreachable

HARDWARE = HardwareKind(gpu_model="A100", max_power_w=300.0, energy_method=EnergyMethod.MONITOR, memory_mib=40960)
RULES = Rules()


class ReachableOptimizer:
    """A transport to a real engine over memory. Tests decide when it is away, and when only its answers get lost."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.store = InMemoryStore(lambda: self.now)
        self.is_away = False
        self.failure: Exception | None = None  # what everything fails with, if set
        self.loses_answers_to: tuple[type, ...] = ()
        self.problem: Problem | None = None  # what everything is answered with, if set
        self.requests: list[Request] = []
        self.is_closed = False
        self.engine = Engine(self.store, rules)

    async def start(self) -> None:
        self.is_closed = False

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        if self.is_away:
            raise Unreachable("nobody answers")
        if self.failure is not None:
            raise self.failure
        self.requests.append(request)
        if self.problem is not None:
            return self.problem
        answers = await self.engine.execute([decode_command(encode_command(request))])
        if isinstance(request.command, self.loses_answers_to):
            raise Unreachable("the answer was lost")
        return answers[0].reply

    async def close(self) -> None:
        self.is_closed = True

    def commands(self, kind: type[Command]) -> list[Any]:
        """The commands of a kind that came, in order."""
        return [request.command for request in self.requests if isinstance(request.command, kind)]

    def trials(self, job_id: str = "job") -> Sequence[Trial]:
        """The trials of a job as they are recorded."""
        return asyncio.run(self.store.trials(job_id))

    def event_types(self, job_id: str = "job") -> list[str]:
        """The history of a job."""
        events = asyncio.run(self.store.history(job_id))
        return [type(stored.recorded.event).__name__ for stored in events]

    def let_leases_lapse(self, *, after_s: float = 601.0) -> None:
        """Move the clock on, and do what a worker does about it."""
        self.now += timedelta(seconds=after_s)

        async def reap() -> None:
            lapsed = await self.store.lapsed_leases()
            await self.engine.execute([expiry_of(lease) for lease in lapsed])

        asyncio.run(reap())


@dataclass
class Measured:
    time: float
    total_energy: float


class ScriptedMonitor:
    """Measures ``energy_j`` in each window."""

    def __init__(self, energy_j: float = 10.0) -> None:
        self.energy_j = energy_j
        self.windows: list[str] = []
        self.error: Exception | None = None

    def begin_window(self, key: str, /) -> None:
        if self.error is not None:
            raise self.error
        assert key not in self.windows, "a window of this key is open"
        self.windows.append(key)

    def end_window(self, key: str, /) -> Measured:
        self.windows.remove(key)
        return Measured(time=1.0, total_energy=self.energy_j)


def job_spec(**fields: Any) -> JobSpec:
    """A job whose cost is its energy alone: costs are then exactly what the monitor says."""
    chosen: dict[str, Any] = {
        "job_id": "job",
        "batch_sizes": [32, 64, 128],
        "default_batch_size": 64,
        "target_metric": 0.9,
        "max_epochs": 5,
        "eta_knob": 1.0,
    }
    return JobSpec(**chosen | fields)
