"""A rank is killed in the middle of a training, or raises, once; with a checkpoint the next launch goes on with it."""

import os
import signal
import sys

import torch
import torch.distributed as dist

from tests.training.distributed.rank_notes import FOLDER, LAUNCH, RANK, ScriptedMonitor, join, make_bso, say

victim, has_checkpoint, raises = int(sys.argv[1]), sys.argv[2] == "checkpoint", sys.argv[2] == "raises"
checkpoint = FOLDER / "checkpoint.pt"
join()
bso = make_bso(monitor=ScriptedMonitor(10.0))
if checkpoint.exists():
    bso.load_state_dict(torch.load(checkpoint, weights_only=False))
for trial in bso.trials():
    say(launch=LAUNCH, number=trial.trial_number, epoch=trial.epoch, recurrence=trial.recurrence_id)
    with trial:
        while not trial.finished:
            if LAUNCH == 0 and trial.epoch == 2 and victim == RANK:
                if raises:
                    raise ValueError("a bug on one rank")
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
            trial.on_evaluate(0.95 if trial.epoch >= 3 else 0.1)
            if has_checkpoint and RANK == 0:
                torch.save(bso.state_dict(), checkpoint)
    say(outcome=trial.outcome.value if trial.outcome else None)
bso.close()
dist.destroy_process_group()
