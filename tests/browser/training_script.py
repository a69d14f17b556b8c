"""A training of a few made epochs: the larger the batch size up to 128, the fewer.

Usage: training_script.py JOB RECURRENCES [FILE], where FILE has to be there before the second epoch.
"""

import sys
from pathlib import Path

from bso_client import BatchSizeOptimizer, JobSpec
from tests.servers import eventually


def main(job_id: str, recurrences: int, waits_for: Path | None) -> None:
    """Train."""
    sizes = [16, 32, 64, 128, 256]
    spec = JobSpec(job_id=job_id, batch_sizes=sizes, default_batch_size=32, target_metric=0.9, max_epochs=40)
    for _ in range(recurrences):
        for trial in BatchSizeOptimizer(spec).trials():
            with trial:
                needed = 4 + abs(trial.batch_size - 128) // 16
                epoch = 0
                while not trial.finished:
                    epoch += 1
                    if epoch == 2 and waits_for is not None:
                        eventually(waits_for.exists)
                    trial.on_evaluate(0.95 if epoch == needed else round(0.9 * epoch / needed, 3))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None)
