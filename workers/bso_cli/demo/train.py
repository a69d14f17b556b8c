"""The training of ``bso demo``, a script like any other: a small network learns to read handwritten digits.

bso recur 20 -- python train.py        # finds the best batch size
bso recur 5 -- python train.py 256     # another job, which always has this one
"""

import sys
import time
from types import SimpleNamespace

from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

from bso_client import BatchSizeOptimizer, JobSpec

POWER_W = 10.0  # what one busy core is taken to draw


class CpuTime:
    """Estimates energy from the processor's time. Leave ``monitor`` out, and energy is measured where it can be."""

    def begin_window(self, key: str, /) -> None:
        """Note both times."""
        self._began = time.monotonic(), time.process_time()

    def end_window(self, key: str, /) -> SimpleNamespace:
        """What has passed since then."""
        began, cpu_began = self._began
        energy_j = (time.process_time() - cpu_began) * POWER_W
        return SimpleNamespace(time=time.monotonic() - began, total_energy=energy_j)


def main(batch_sizes: list[int]) -> None:
    """Train until there is a model that reads 90 % of the digits it has not seen."""
    images, digits = load_digits(return_X_y=True)
    images = images / 16
    # What is slow only once in a process is done before it counts: these epochs take milliseconds.
    MLPClassifier().partial_fit(images, digits, classes=range(10)).score(images, digits)
    spec = JobSpec(
        job_id="demo-digits-control" if batch_sizes else "demo-digits",
        batch_sizes=batch_sizes or [16, 32, 64, 128, 256],
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
    main([int(word) for word in sys.argv[1:]])
