"""Trials that report for ever, for benchmarks of the client."""

from collections.abc import Iterator
from contextlib import contextmanager

from bso_cli.demo.train import CpuTime
from bso_client import BatchSizeOptimizer, JobSpec, Trial
from bso_client.hardware import cpu_kind
from bso_client.options import OptimizerOptions
from bso_client.transports import Transport

EMBEDDED, THROUGH_WORKER = "embedded (SQLite)", "through broker and worker"


def endless_spec(job_id: str) -> JobSpec:
    """A job whose trainings are never stopped, as long as they report less than its target of 0.9."""
    return JobSpec(
        job_id=job_id,
        batch_sizes=[32, 64, 128, 256, 512],
        default_batch_size=128,
        target_metric=0.9,
        max_epochs=10**9,
        beta_knob=None,
    )


@contextmanager
def endless_trial(job_id: str, url: str, *, state_dir: str, transport: Transport | None = None) -> Iterator[Trial]:
    """A trial whose training has begun and is never stopped."""
    options: OptimizerOptions = {
        "url": url,
        "state_dir": state_dir,
        "hardware": cpu_kind(10.0),
        "monitor": CpuTime(),
    }
    if transport is not None:
        options["transport"] = transport
    with BatchSizeOptimizer(endless_spec(job_id), **options) as bso:
        trials = bso.trials()  # a loop over trials that is left, or forgotten, ends its trial
        with next(trials) as trial:
            yield trial
            assert not trial.finished
