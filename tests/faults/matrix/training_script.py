"""A training as users write one: ``training_script.py JOURNAL JOB SEED``; BSO_URL and BSO_STATE_DIR say the rest.

Recurs until SIGUSR1. What it evaluated and how each trial ended stands in the journal, one JSON object a line, so that
it can be compared with what the optimizer has recorded.
"""

import json
import random
import signal
import sys
import time
from pathlib import Path

from bso.domain.errors import BsoError
from bso_client import BatchSizeOptimizer, JobSpec

EPOCHS_NEEDED = {16: 9, 32: 6, 64: 4, 128: 6, 256: 1000}
STATE = {"is_over": False}


def main(journal: Path, job_id: str, seed: int) -> None:
    rng = random.Random(seed)
    signal.signal(signal.SIGUSR1, lambda *_: STATE.update(is_over=True))
    spec = JobSpec(
        job_id=job_id, batch_sizes=sorted(EPOCHS_NEEDED), default_batch_size=64, target_metric=0.9, max_epochs=12
    )
    with journal.open("a", buffering=1, encoding="utf-8") as lines:

        def note(**facts: object) -> None:
            lines.write(json.dumps({"at_s": time.monotonic(), **facts}) + "\n")

        note(did="started")
        while not STATE["is_over"]:
            try:
                recur(spec, rng, note)
            except BsoError as error:  # a batch size could not be had: the next night there will be one
                note(did="refused", error=f"{type(error).__name__}: {error}")
                time.sleep(0.5)
            except Exception as error:  # a training must never end because of the optimizer
                note(did="raised", error=f"{type(error).__name__}: {error}")
                raise
        note(did="ended")


def recur(spec, rng, note) -> None:  # type: ignore[no-untyped-def]  # a script
    optimizer = BatchSizeOptimizer(spec, unreachable_timeout=20.0)
    for trial in optimizer.trials():
        epoch = 0
        with trial:
            while not trial.finished:
                time.sleep(0.05 * rng.uniform(0.5, 1.5))
                epoch += 1
                trial.on_evaluate(0.95 if epoch >= EPOCHS_NEEDED[trial.batch_size] else 0.5)
                note(did="evaluated", trial_number=trial.trial_number, epoch=epoch)
        outcome = trial.outcome.value if trial.outcome else None
        note(did="trial_ended", trial_number=trial.trial_number, outcome=outcome, reason=trial.outcome_reason)
    optimizer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
