"""Rank 0, which keeps the store of torch.distributed, is frozen: before the ranks have met, or in a training."""

import os
import signal
import sys

import torch.distributed as dist

from bso_client import RankLost
from tests.training.distributed.rank_notes import RANK, join, make_bso, say


def train() -> None:
    """Train until rank 0 is frozen."""
    for trial in bso.trials():
        with trial:
            while not trial.finished:
                if RANK == 0 and trial.epoch == 2:
                    freeze()
                trial.on_evaluate(0.1)


def freeze() -> None:
    """Stop this process; the other one ends it."""
    os.kill(os.getpid(), signal.SIGSTOP)


join()
pids = [os.getpid()]
dist.broadcast_object_list(pids, src=0)
bso = make_bso(rank_timeout=15.0)
if RANK == 0 and sys.argv[1] == "begin":
    freeze()
try:
    train()
except RankLost as error:
    say(lost=str(error))
bso.close(timeout=1.0)
os.kill(pids[0], signal.SIGKILL)
