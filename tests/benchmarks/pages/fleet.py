"""A fleet of jobs in a SQLite file, decided as real ones are, from a seed."""

import math
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.progress import track

from bso.domain.commands import BeginTrial, Command, RegisterJob, ReportEpoch, Request
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import TrialBegun
from bso_client.transports.embedded import Embedded, open_embedded

SIZES = [32, 64, 128, 256, 512]
SPEC = {"batch_sizes": SIZES, "default_batch_size": 64, "target_metric": 0.9, "max_epochs": 20}
HARDWARE = HardwareKind(gpu_model="A40", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
_AT_ONCE = 50


async def make_fleet(path: Path, *, jobs: int, trials: int, running: int, seed: int) -> None:
    """So many jobs with so many trials each, all converged; one more trial runs in each of the first ``running``."""
    rng = random.Random(seed)
    names = [f"{rng.choice(['vision', 'speech', 'search'])}-model-{number:04}" for number in range(jobs)]
    best = {name: rng.choice(SIZES) for name in names}
    embedded = await open_embedded(path)
    try:
        await _all(embedded, {name: RegisterJob(spec=SPEC) for name in names})
        for number in track(range(trials), description="trials of each job"):
            for group in _groups(names):
                begun = await _begin(embedded, group, f"night-{number}")
                for epoch in (1, 2):
                    await _all(embedded, {name: _report(begun[name], epoch, best[name], rng) for name in group})
        for group in _groups(names[:running]):
            begun = await _begin(embedded, group, "tonight")
            await _all(embedded, {name: _report(begun[name], 1, best[name], rng) for name in group})
    finally:
        await embedded.close()


async def begin_live(path: Path, job_id: str) -> TrialBegun:
    """Begin a trial of a job, whose reports a page shows."""
    embedded = await open_embedded(path)
    try:
        await _all(embedded, {job_id: RegisterJob(spec=SPEC)})
        return (await _begin(embedded, [job_id], str(uuid.uuid4())))[job_id]
    finally:
        await embedded.close()


async def report_live(path: Path, job_id: str, begun: TrialBegun, epoch: int) -> float:
    """Report an epoch that does not reach the target; the moment of the reply, on the clock of perf_counter."""
    embedded = await open_embedded(path)
    try:
        report = replace(_report(begun, epoch, 64, random.Random(epoch)), metric=0.1)
        await _all(embedded, {job_id: report})
        return time.perf_counter()
    finally:
        await embedded.close()


def _groups(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + _AT_ONCE] for start in range(0, len(names), _AT_ONCE))


async def _begin(embedded: Embedded, names: Sequence[str], recurrence_id: str) -> dict[str, TrialBegun]:
    return {
        name: reply
        for name, reply in (
            await _all(embedded, {name: BeginTrial(hardware=HARDWARE, recurrence_id=recurrence_id) for name in names})
        ).items()
        if isinstance(reply, TrialBegun)
    }


def _report(begun: TrialBegun, epoch: int, best: int, rng: random.Random) -> ReportEpoch:
    """Epochs cost more the further the batch size lies from the best one; the second one reaches the target."""
    factor = 1.0 + 0.3 * abs(math.log2(begun.batch_size / best)) + 0.05 * rng.random()
    return ReportEpoch(
        trial_number=begun.trial_number,
        trial_id=begun.trial_id,
        epoch=float(epoch),
        time_s=600.0 * factor * epoch,
        energy_j=150_000.0 * factor * epoch,
        metric=0.5 if epoch == 1 else 0.95,
    )


async def _all(embedded: Embedded, commands: dict[str, Command]) -> dict[str, object]:
    asked = [Request(command_id=str(uuid.uuid4()), job_id=name, command=each) for name, each in commands.items()]
    answers = await embedded.engine.execute(asked)
    return {answer.request.job_id: answer.reply for answer in answers}
