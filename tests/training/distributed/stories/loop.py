"""A loop over trials: the first batch size fails, a smaller one converges."""

import logging

import torch.distributed as dist

from tests.training.distributed.rank_notes import FOLDER, RANK, ScriptedMonitor, join, make_bso, say

logging.basicConfig(filename=FOLDER / f"log-{RANK}", level=logging.INFO, format="%(levelname)s %(message)s")
join()
bso = make_bso(monitor=ScriptedMonitor(10.0 * (RANK + 1)), constant_power=70.0)
for trial in bso.trials():
    say(batch_size=trial.batch_size, number=trial.trial_number, reason=trial.reason)
    say(local=trial.local_batch_size, ranks=trial.ranks.gather(RANK), first=trial.ranks.broadcast(f"from {RANK}"))
    with trial:
        while not trial.finished:
            with bso.paused():
                pass
            trial.on_evaluate((0.95 if trial.batch_size == 32 else 0.1) + RANK / 1000)
            say(epoch=trial.epoch, finished=trial.finished, cost=trial.cost, metric=trial.metric)
    kind = trial.hardware
    say(number_of_gpus=kind.number_of_gpus, max_power_w=kind.max_power_w)
    say(outcome=trial.outcome.value if trial.outcome else None, why=trial.outcome_reason)
bso.close()
dist.destroy_process_group()
