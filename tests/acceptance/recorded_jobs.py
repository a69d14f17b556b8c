"""Jobs of every kind in a state directory: written as trainings write them, but with made-up times and energies.

Trainings of microseconds and of days, measured and assumed energy, long names, many batch sizes, two hardware kinds,
two versions, batch sizes that are excluded or do not fit, power profiles, a trial that runs, a job that finds nothing.
"""

import asyncio
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bso.domain.commands import (
    BeginTrial,
    Command,
    FinishTrial,
    PowerMeasurement,
    RegisterJob,
    ReportEpoch,
    ReportPowerProfile,
    Request,
)
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.learning_rate import LearningRate
from bso.domain.replies import EpochJudged, Problem, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso_client.transports import open_transport
from bso_client.transports.transport import Transport

LONG = "vision-resnet50-imagenet-nightly-production-eu-west"
LAPTOP = HardwareKind(gpu_model="AMD EPYC", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)
SERVER = HardwareKind(gpu_model="AMD EPYC", max_power_w=280.0, energy_method=EnergyMethod.RAPL)
A100S = HardwareKind(
    gpu_model="NVIDIA A100-SXM4-80GB",
    max_power_w=3200.0,
    energy_method=EnergyMethod.NVML_COUNTER,
    number_of_gpus=8,
    memory_mib=81920,
)
H100S = HardwareKind(
    gpu_model="NVIDIA H100 80GB HBM3", max_power_w=2800.0, energy_method=EnergyMethod.MONITOR, number_of_gpus=4
)
_TARGET = 0.9


@dataclass
class Job:
    """A job and what its trainings would take: ``epochs`` to the target and ``epoch_s`` seconds each."""

    transport: Transport
    job_id: str
    batch_sizes: Sequence[int]
    default_batch_size: int
    hardware: HardwareKind
    epoch_s: float
    power_w: float
    rate: LearningRate | None = None
    failing: frozenset[int] = frozenset()
    draws: random.Random = field(default_factory=lambda: random.Random(0))

    async def register(self, **spec: Any) -> None:
        given: Mapping[str, Any] = {
            "batch_sizes": list(self.batch_sizes),
            "default_batch_size": self.default_batch_size,
            "target_metric": _TARGET,
            "max_epochs": 30,
            **spec,
        }
        await self._ask(RegisterJob(spec=given))

    async def recur(self, times: int) -> None:
        """So many recurrences, each until it has a model or no attempt is left."""
        for _ in range(times):
            while await self.train(recurrence_id=None):
                pass

    async def train(self, *, recurrence_id: str | None = None, batch_size: int | None = None) -> bool:
        """One training; whether the recurrence wants another one."""
        trial = await self.begin(recurrence_id=recurrence_id, batch_size=batch_size)
        octaves = abs(trial.batch_size.bit_length() - self.default_batch_size.bit_length() + 2)
        needed = max(1, round((4 + octaves) * self.draws.gauss(1, 0.1)))
        time_s = energy_j = 0.0
        for epoch in range(1, 31):
            time_s += self.epoch_s * self.draws.gauss(1, 0.02)
            energy_j = time_s * self.power_w
            has_it = epoch >= needed and trial.batch_size not in self.failing
            judged = await self.report(trial, epoch, time_s, energy_j, metric=0.91 if has_it else 0.5 + 0.01 * epoch)
            if judged.should_stop:
                return judged.should_retry
        raise AssertionError("every training is stopped at last")

    async def begin(self, *, recurrence_id: str | None = None, batch_size: int | None = None) -> TrialBegun:
        begun = await self._ask(
            BeginTrial(
                hardware=self.hardware, recurrence_id=recurrence_id, batch_size=batch_size, learning_rate=self.rate
            )
        )
        assert isinstance(begun, TrialBegun)
        return begun

    async def report(
        self, trial: TrialBegun, epoch: int, time_s: float, energy_j: float, *, metric: float
    ) -> EpochJudged:
        judged = await self._ask(
            ReportEpoch(
                trial_number=trial.trial_number,
                trial_id=trial.trial_id,
                epoch=float(epoch),
                time_s=time_s,
                energy_j=energy_j,
                metric=metric,
            )
        )
        assert isinstance(judged, EpochJudged)
        return judged

    async def run_out_of_memory(self, batch_size: int, *, recurrence_id: str) -> None:
        trial = await self.begin(batch_size=batch_size, recurrence_id=recurrence_id)
        reason = "out_of_memory: CUDA out of memory. Tried to allocate 20.00 GiB"
        await self._ask(
            FinishTrial(
                trial_number=trial.trial_number, trial_id=trial.trial_id, outcome=Outcome.INFEASIBLE, reason=reason
            )
        )

    async def profile(self, batch_size: int, *limits_w: float) -> None:
        measurements = tuple(
            PowerMeasurement(power_limit_w=w, average_power_w=w - 12.3, samples_per_s=100.0 * w**0.6) for w in limits_w
        )
        await self._ask(ReportPowerProfile(hardware=self.hardware, batch_size=batch_size, measurements=measurements))

    async def _ask(self, command: Command) -> Reply:
        request = Request(command_id=str(uuid.uuid4()), job_id=self.job_id, command=command)
        reply = await self.transport.call(request, timeout_s=60.0)
        assert not isinstance(reply, Problem), reply
        return reply


def record_noisy(url: str) -> None:
    """Write two jobs: of one, an epoch costs half or twice as much in another run as in the last."""
    asyncio.run(_record_noisy(url))


async def _record_noisy(url: str) -> None:
    transport = open_transport(url)
    await transport.start()
    try:
        for name, noise in (("quiet", 0.0), ("shared-node", 0.5)):
            job = Job(transport, name, [64], 64, SERVER, epoch_s=45.6, power_w=190.0)
            await job.register(early_stopping=False)
            for _ in range(15):
                job.epoch_s = 45.6 * job.draws.lognormvariate(0.0, noise)
                await job.recur(1)
    finally:
        await transport.close()


def record(state_dir: Path) -> None:
    """Write the jobs into the file of a state directory."""
    asyncio.run(_record(f"sqlite:///{state_dir / 'bso.sqlite'}"))


async def _record(url: str) -> None:
    transport = open_transport(url)
    await transport.start()
    try:
        await _short_ones(transport)
        await _long_one(transport)
        await _staged_ones(transport)
    finally:
        await transport.close()


async def _short_ones(transport: Transport) -> None:
    sizes = [8, 16, 32, 64, 128]
    laptop = Job(transport, "laptop", sizes, 32, LAPTOP, epoch_s=3.4e-5, power_w=1.0)
    await laptop.register()
    await laptop.recur(8)
    measured = Job(transport, "digits-nightly", sizes, 128, SERVER, epoch_s=45.6, power_w=190.0)
    await measured.register()
    await measured.recur(12)
    await measured.begin()


async def _long_one(transport: Transport) -> None:
    """Twelve batch sizes on two hardware kinds, in two versions; one does not fit, one never converges."""
    sizes = [2**power for power in range(5, 17)]
    rate = LearningRate(0.1, reference_batch_size=256)
    job = Job(transport, LONG, sizes, 1024, A100S, epoch_s=7300.0, power_w=2800.0, rate=rate, failing=frozenset({64}))
    await job.register(beta_knob=None)
    await job.recur(3)
    await job.register(version="wider", beta_knob=None)
    await job.recur(6)
    for night in ("one", "two"):
        await job.run_out_of_memory(65536, recurrence_id=night)
        await job.train(batch_size=64, recurrence_id=night)
    await job.profile(512, 3200.0, 2400.0, 1600.0)
    elsewhere = Job(transport, LONG, sizes, 1024, H100S, epoch_s=4100.0, power_w=2300.0, rate=rate)
    await elsewhere.recur(5)


async def _staged_ones(transport: Transport) -> None:
    sizes = [16, 32, 64, 128, 256, 512]
    staged = Job(transport, "sentiment", sizes, 128, SERVER, epoch_s=2.1, power_w=120.0, failing=frozenset({512}))
    await staged.register(policy="pruning_thompson")
    await staged.recur(14)
    hopeless = Job(transport, "hopeless", [32, 64], 64, SERVER, epoch_s=2.1, power_w=120.0, failing=frozenset({32, 64}))
    await hopeless.register(policy="pruning_thompson")
    await hopeless.recur(4)
