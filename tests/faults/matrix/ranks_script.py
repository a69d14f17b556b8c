"""A data-parallel training as torchrun starts it for each rank: ``ranks_script.py JOB``, with BSO_URL set.

Recurs, launch after launch, until there is a file ``over``. Each epoch has a collective of the training itself, and
leaves a checkpoint.
"""

import itertools
import os
import random
import sys
import time
from typing import Any

import torch  # pyright: ignore[reportMissingImports]  # it need not be installed
import torch.distributed as dist  # pyright: ignore[reportMissingImports]

from bso.domain.errors import BsoError
from bso_client import BatchSizeOptimizer, CannotResume, RankLost
from tests.training.distributed.rank_notes import FOLDER, LAUNCH, RANK, job_spec, join, make_bso, say

JOB = sys.argv[1]
EPOCHS_NEEDED = {32: 6, 64: 4, 128: 1000}
CHECKPOINT, NIGHT, OVER = FOLDER / "checkpoint.pt", FOLDER / "night", FOLDER / "over"


def main() -> None:
    """Recur, and note what this rank sees."""
    note(did="started", pid=os.getpid())
    try:
        join()
        for night in itertools.count(from_rank_0(int(NIGHT.read_text()) if NIGHT.exists() else 1)):
            if from_rank_0(OVER.exists()):
                break
            if RANK == 0:
                NIGHT.write_text(str(night))
            recur(night)
        dist.destroy_process_group()
    except (RankLost, RuntimeError) as error:  # torch raises a RuntimeError where a collective has lost a rank
        note(did="lost_a_rank", error=f"{type(error).__name__}: {error}"[:300])
        sys.exit(1)


def recur(night: int) -> None:
    """One recurrence, which goes on from the checkpoint if there is one."""
    bso = make_bso(
        job_spec(job_id=JOB, max_epochs=8),
        state_dir=FOLDER / "state",
        recurrence_id=f"night-{night}",
        rank_timeout=20.0,
        unreachable_timeout=10.0,
    )
    if CHECKPOINT.exists():
        bso.load_state_dict(torch.load(CHECKPOINT, weights_only=False))
    try:
        train(bso, night)
    except RankLost:
        raise
    except BsoError as error:  # a batch size could not be had: the next night there will be one
        if isinstance(error, CannotResume):  # its trial has ended: the rank was killed before it could remove this
            keep(None)
        note(did="refused", error=f"{type(error).__name__}: {error}")
        time.sleep(0.5)
    bso.close()


def train(bso: BatchSizeOptimizer, night: int) -> None:
    """The trials of a recurrence."""
    for trial in bso.trials():
        with trial:
            while not trial.finished:
                time.sleep(0.1 * random.uniform(0.5, 1.5))
                dist.all_reduce(torch.ones(1))
                trial.on_evaluate(0.95 if trial.epoch + 1 >= EPOCHS_NEEDED[trial.batch_size] else 0.5)
                seen = {"trial_number": trial.trial_number, "epoch": trial.epoch, "cost": trial.cost}
                note(did="evaluated", night=night, attempt=trial.attempt, **seen)
                keep(None if trial.outcome else bso.state_dict())
        outcome = trial.outcome.value if trial.outcome else None
        ended = {"trial_number": trial.trial_number, "outcome": outcome, "reason": trial.outcome_reason}
        note(did="trial_ended", night=night, attempt=trial.attempt, **ended)


def keep(checkpoint: dict[str, Any] | None) -> None:
    """Rank 0 keeps a checkpoint in the place of the one before; None: there is nothing to go on with."""
    if RANK != 0:
        return
    if checkpoint is None:
        CHECKPOINT.unlink(missing_ok=True)
        return
    torch.save(checkpoint, CHECKPOINT.with_suffix(".new"))
    CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)


def from_rank_0(number: int) -> int:
    """What rank 0 has found, on every rank."""
    found = torch.tensor([number])
    dist.broadcast(found, 0)
    return int(found.item())


def note(**facts: Any) -> None:
    """Note what this rank sees, when, and in which launch."""
    say(at_s=time.monotonic(), launch=f"{os.environ['TORCHELASTIC_RUN_ID']}-{LAUNCH}", **facts)


if __name__ == "__main__":
    main()
