"""The recurring training of the demo: an ordinary training script with bso_client that also tells its news."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bso.domain.trial import Outcome

if TYPE_CHECKING:
    from bso_client.trial import TrialView

JOB_ID = "demo-digits"
CONTROL_ID = "demo-digits-control"
"""A second job that has only the default batch size: what the trainings would cost without bso."""

CONTROL_TRAININGS = 5
BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
DEFAULT_BATCH_SIZE = 512
TARGET_ACCURACY = 0.97
MAX_EPOCHS = 60
POWER_W = 10.0
"""What one busy core is taken to draw [W]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """Where a job lives, what it may choose from, and what its randomness starts from."""

    url: str
    state_dir: str
    seed: int
    job_id: str = JOB_ID
    batch_sizes: tuple[int, ...] = BATCH_SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What a training has just done. ``choice`` is why it has this batch size; ``outcome`` None while it runs."""

    recurrence: int
    trial_number: int | None
    batch_size: int
    epoch: int
    accuracy: float | None
    cost: float
    choice: str
    outcome: Outcome | None = None
    outcome_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedEnergy:
    """The energy of a window, as estimated from CPU time."""

    time: float
    total_energy: float


class CpuTimeMonitor:
    """Estimates energy as this process' CPU time times the power of one core.

    Unlike wall-clock time this hardly depends on what else the machine is doing. A real training would pass a
    monitor that measures, or none.
    """

    def __init__(self, power_w: float = POWER_W) -> None:
        self._power_w = power_w
        self._windows: dict[str, tuple[float, float]] = {}

    def begin_window(self, key: str, /) -> None:
        """Note wall-clock and CPU time."""
        self._windows[key] = time.monotonic(), time.process_time()

    def end_window(self, key: str, /) -> EstimatedEnergy:
        """What has passed since begin_window."""
        began_at, cpu_began_at = self._windows.pop(key)
        cpu_s = time.process_time() - cpu_began_at
        return EstimatedEnergy(time=time.monotonic() - began_at, total_energy=cpu_s * self._power_w)


def train(job: DemoJob, *, recurrence: int, tell: Callable[[News], None]) -> None:
    """Train until there is a model that reads 97 % of the digits it has not seen."""
    from bso_cli.demo.digits import Classifier, split_for
    from bso_client import BatchSizeOptimizer, JobSpec
    from bso_client.hardware import cpu_kind

    spec = JobSpec(
        job_id=job.job_id,
        batch_sizes=job.batch_sizes,
        default_batch_size=DEFAULT_BATCH_SIZE,
        target_metric=TARGET_ACCURACY,
        max_epochs=MAX_EPOCHS,
        eta_knob=1.0,
        mab_seed=job.seed,
        version="256 hidden units, learning rate 0.03 * sqrt(batch size / 64)",
    )
    split = split_for(seed=job.seed, recurrence=recurrence)
    with BatchSizeOptimizer(
        spec,
        url=job.url,
        state_dir=job.state_dir,
        recurrence_id=f"demo-{recurrence}-{uuid.uuid4().hex[:8]}",
        hardware=cpu_kind(POWER_W),
        monitor=CpuTimeMonitor(),
    ) as bso:
        for trial in bso.trials():
            model = Classifier(batch_size=trial.batch_size, seed=recurrence)
            with trial:
                epoch = 0
                tell(_news(trial, recurrence=recurrence, epoch=epoch))
                while not trial.finished:
                    model.train_epoch(split)
                    trial.on_evaluate(model.accuracy(split))
                    epoch += 1
                    tell(_news(trial, recurrence=recurrence, epoch=epoch))


def _news(trial: TrialView, *, recurrence: int, epoch: int) -> News:
    return News(
        recurrence=recurrence,
        trial_number=trial.trial_number,
        batch_size=trial.batch_size,
        epoch=epoch,
        accuracy=trial.metric,
        cost=trial.cost,
        choice=trial.reason,
        outcome=trial.outcome,
        outcome_reason=trial.outcome_reason,
    )
