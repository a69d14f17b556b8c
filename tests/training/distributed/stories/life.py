"""The other ways through a training: pauses, loops left early, flat methods, groups made anew, the async optimizer."""

import asyncio
import os

import torch.distributed as dist

from bso_client import AsyncBatchSizeOptimizer
from tests.training.distributed.rank_notes import RANK, job_spec, join, make_bso, options, said, say


def leave_early() -> None:
    """Break before the training, inside of it, and raise in it on every rank."""
    bso = make_bso(job_spec(job_id="early"))
    for trial in bso.trials():
        say(unstarted=trial.trial_number)
        break
    for trial in bso.trials():
        with trial:
            trial.on_evaluate(0.1)
            break
    assert bso.trial is not None
    say(left=bso.trial.outcome_reason)

    def fail() -> None:
        for trial in bso.trials():
            with trial:
                raise KeyError(f"label {RANK}")

    say(raised=said(fail))
    bso.close()


def train_flat() -> None:
    """The flat methods, a second time after torch.distributed was started anew."""
    for time in range(2):
        dist.destroy_process_group()
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        dist.init_process_group("gloo", store=dist.PrefixStore(f"anew-{time}", store), rank=RANK, world_size=2)
        say(size=flat.get_batch_size())
        flat.on_train_begin()
        with flat.paused():
            pass
        while not flat.training_finished:
            flat.on_evaluate(0.95)
        say(converged=flat.trial.converged if flat.trial else None, job=flat.job_id)
    flat.close()


def train_parts_of_the_model() -> None:
    """Two ranks hold parts of one model: each batch goes through both."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    with make_bso(
        job_spec(job_id="pipeline", batch_sizes=[31], default_batch_size=31), data_parallel_group=groups[RANK]
    ) as bso:
        for trial in bso.trials():
            say(pipeline=trial.local_batch_size)
            with trial:
                trial.on_evaluate(0.95)


def go_on_with_the_checkpoint_of_rank_0() -> None:
    """Rank 0 alone has a checkpoint. Its trial goes on; once that has ended, all ranks begin anew."""
    bso, kept = make_bso(job_spec(job_id="resumed")), []

    def lose_the_machine() -> None:
        for trial in bso.trials():
            with trial:
                trial.on_evaluate(0.1)
                kept.append(trial.state_dict())
                raise KeyError("preempted")

    say(preempted=said(lose_the_machine)[:1])
    for _night in range(2):
        for trial in bso.resumable_trials(kept[0] if RANK == 0 else None):
            say(resumed=[trial.trial_number, trial.is_resumed, trial.epoch])
            with trial:
                trial.on_evaluate(0.95)
    bso.close()


async def train_async() -> None:
    """The asynchronous optimizer."""
    async with AsyncBatchSizeOptimizer(job_spec(job_id="async"), **options()) as bso:
        async for trial in bso.trials():
            async with trial:
                while not trial.finished:
                    await trial.on_evaluate(0.95)
            say(asynchronous=trial.outcome.value if trial.outcome else None)


join()
leave_early()
flat = make_bso(job_spec(job_id=None, job_id_prefix="flat"))
train_flat()
train_parts_of_the_model()
go_on_with_the_checkpoint_of_rank_0()
asyncio.run(train_async())
dist.destroy_process_group()
