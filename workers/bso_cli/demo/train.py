"""The training of ``bso demo``, a script like any other: a small network learns to read handwritten digits.

bso recur 20 -- python train.py  # finds the best batch size
python train.py 256 256          # another job, two trainings that have this one
"""

import sys
import time
from types import SimpleNamespace
from typing import Any

from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from bso_client import BatchSizeOptimizer, JobSpec

POWER_W = 10.0  # what one busy core is taken to draw


class CpuTime:
    """Estimates energy from the processor's time. Leave ``monitor`` out, and energy is measured where it can be."""

    def begin_window(self, key: str, /) -> None:
        """Note both times."""
        self._began = time.monotonic(), time.process_time()

    def end_window(self, key: str, /) -> Any:
        """What has passed since then."""
        began, cpu_began = self._began
        energy_j = (time.process_time() - cpu_began) * POWER_W
        return SimpleNamespace(time=time.monotonic() - began, total_energy=energy_j)


def main(only: int | None = None) -> None:
    """Train until a model reads 90 % of the digits that it has not seen, with one batch size only if that is given."""
    images, digits = load_digits(return_X_y=True)
    images = images / 16
    # What is slow only once in a process is done before it counts: these epochs take milliseconds.
    MLPClassifier().partial_fit(images, digits, classes=range(10)).score(images, digits)
    spec = JobSpec(
        job_id="demo-digits-control" if only else "demo-digits",
        batch_sizes=[only] if only else [16, 32, 64, 128, 256],
        default_batch_size=256,
        target_metric=0.9,
        eta_knob=1.0,  # energy alone counts
    )
    for trial in BatchSizeOptimizer(spec, monitor=CpuTime(), constant_power=POWER_W).trials():
        model = MLPClassifier(batch_size=trial.batch_size)
        with trial:
            while not trial.finished:
                model.partial_fit(images[:1400], digits[:1400], classes=range(10))  # one epoch
                trial.on_evaluate(model.score(images[1400:], digits[1400:]))


if __name__ == "__main__":
    for size in map(int, sys.argv[1:]):
        main(size)
    if len(sys.argv) == 1:
        main()
