"""``python -m tests.benchmarks.crowd.whole``: one training as people write them, night after night, in a process.

It writes a line for every evaluation, after the optimizer's client has taken it over.
"""

import signal
import sys
import threading
from dataclasses import replace

from bso_cli.demo.train import CpuTime
from bso_client import BatchSizeOptimizer, JobSpec
from bso_client.hardware import cpu_kind
from tests.benchmarks.digits import Classifier, split_for, use_one_core

IMAGES = 1000
"""Few, so that an epoch takes milliseconds of CPU: many such processes share a machine with what is measured."""


def main() -> None:
    """Train: the arguments are the broker's URL, the folder for journals, the job, and the time from epoch to epoch.

    After SIGUSR1 it stops where an epoch ends.
    """
    url, state_dir, job_id, epoch_s = sys.argv[1:]
    is_over = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: is_over.set())
    spec = JobSpec(
        job_id=job_id, batch_sizes=[32, 64, 128, 256], default_batch_size=128, target_metric=0.8, max_epochs=20
    )
    with use_one_core():
        while not is_over.is_set():
            bso = BatchSizeOptimizer(spec, url=url, state_dir=state_dir, hardware=cpu_kind(10.0), monitor=CpuTime())
            with bso:
                _recur(bso, is_over, epoch_s=float(epoch_s))


def _recur(bso: BatchSizeOptimizer, is_over: threading.Event, *, epoch_s: float) -> None:
    data = split_for(seed=1, recurrence=1)
    data = replace(data, images=data.images[:IMAGES], labels=data.labels[:IMAGES])
    for trial in bso.trials():
        model = Classifier(batch_size=trial.batch_size, seed=trial.attempt)
        with trial:
            while not (trial.finished or is_over.wait(epoch_s)):
                model.train_epoch(data)
                sys.stdout.write("evaluated\n")
                sys.stdout.flush()
                trial.on_evaluate(model.accuracy(data))
        if is_over.is_set():
            return


if __name__ == "__main__":
    main()
