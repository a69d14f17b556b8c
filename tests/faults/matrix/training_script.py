"""A training as users write one: ``training_script.py JOURNAL JOB SEED [NIGHTS]``, with BSO_URL and BSO_STATE_DIR set.

Recurs until SIGUSR1, or as often as NIGHTS says, and then waits for nobody. What it evaluated and how each trial ended
stands in the journal, one JSON object a line, so that it can be compared with what the optimizer has recorded.
"""

import itertools
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


def main(journal: Path, job_id: str, seed: int, nights: int | None) -> None:
    rng = random.Random(seed)
    signal.signal(signal.SIGUSR1, lambda *_: STATE.update(is_over=True))
    spec = JobSpec(
        job_id=job_id, batch_sizes=sorted(EPOCHS_NEEDED), default_batch_size=64, target_metric=0.9, max_epochs=12
    )
    with journal.open("a", buffering=1, encoding="utf-8") as lines:

        def note(**facts: object) -> None:
            lines.write(json.dumps({"at_s": time.monotonic(), **facts}) + "\n")

        note(did="started")
        for _ in range(nights) if nights else itertools.count():
            if STATE["is_over"]:
                break
            try:
                recur(spec, rng, note, unreachable_timeout=0.5 if nights else 20.0)
            except BsoError as error:  # a batch size could not be had: the next night there will be one
                note(did="refused", error=f"{type(error).__name__}: {error}")
                time.sleep(0.5)
            except Exception as error:  # a training must never end because of the optimizer
                note(did="raised", error=f"{type(error).__name__}: {error}")
                raise
        note(did="ended")


def recur(spec, rng, note, unreachable_timeout) -> None:  # type: ignore[no-untyped-def]  # a script
    optimizer = BatchSizeOptimizer(spec, unreachable_timeout=unreachable_timeout)
    for trial in optimizer.trials():
        note(did="began")
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
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else None)
