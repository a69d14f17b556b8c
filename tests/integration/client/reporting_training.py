"""A training over an SQLite file, and the files of ours whose code one of its reports runs."""

import sys
import threading
from pathlib import Path
from types import FrameType

import bso
from bso_client import BatchSizeOptimizer, JobSpec

ROOT = Path(bso.__file__).parents[1]
OURS = tuple(f"{ROOT / folder}/" for folder in ("bso", "broker", "client", "migrations"))
METRICS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.95)


class Watch:
    """Notes the files of the functions that are called, in this thread and in those that begin after it."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def taken(self) -> set[str]:
        """The files since the last time."""
        taken, self._files = self._files, set()
        return taken

    def _look(self, frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(OURS):
            self._files.add(str(Path(file).relative_to(ROOT)))


def train(policy: str, trainings: int) -> set[str]:
    """Train so many times. Of what the reports in the middle of each enter, the most: of each, what its least one does.

    The first ones explore; later ones have a bound. Others may be stopped for what they cost in time, or something else
    may happen in the meantime, as a renewal does.
    """
    watch, files = Watch(), list[set[str]]()
    spec = JobSpec(job_id="job", batch_sizes=[32, 64], default_batch_size=64, target_metric=0.9, policy=policy)
    for _ in range(trainings):
        of_training = list[set[str]]()
        for trial in BatchSizeOptimizer(spec).trials():
            with trial:
                for metric in METRICS:
                    watch.taken()
                    trial.on_evaluate(metric)
                    of_training.append(watch.taken())
        files.append(min(of_training[1:-1], key=len))
    return max(files, key=len)


if __name__ == "__main__":
    sys.stdout.write("".join(f"{file}\n" for file in sorted(train(sys.argv[1], int(sys.argv[2])))))
