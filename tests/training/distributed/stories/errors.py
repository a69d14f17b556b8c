"""What goes wrong on one rank, or on rank 0 alone, is raised on all of them."""

import torch.distributed as dist

from bso.domain.replies import Problem
from bso_client import BatchSizeOptimizer
from tests.training.distributed.rank_notes import RANK, job_spec, join, make_bso, options, said, say


class Refusing:
    """A way to an optimizer that refuses everything."""

    async def start(self) -> None:
        """Nothing."""

    async def call(self, request: object, *, timeout_s: float) -> Problem:
        """The refusal."""
        return Problem(type="forbidden", title="Not yours", detail="job belongs to somebody else")

    async def close(self) -> None:
        """Nothing."""


say(uninitialised=said(make_bso().get_batch_size))
join()
uneven = job_spec(batch_sizes=[31, 32, 64], default_batch_size=31)
say(indivisible=said(make_bso(uneven).get_batch_size))
say(too_small=said(make_bso(job_spec(batch_sizes=[1, 64]), uneven=True).get_batch_size))
with make_bso(uneven, uneven=True) as bso:
    say(size=bso.get_batch_size(), share=bso.trial.local_batch_size if bso.trial else None)
    bso.on_train_begin()
    say(bad_report=said(lambda: bso.on_evaluate("high" if RANK == 1 else 0.1)))  # type: ignore[arg-type]  # tested
    say(twice=said(bso.get_batch_size))
say(refused=said(make_bso(transport=Refusing()).get_batch_size))
away = options(url="amqp://guest:guest@127.0.0.1:9", unreachable_timeout=1.0)
say(unreachable=said(BatchSizeOptimizer(job_spec(job_id="never"), **away).get_batch_size))
flat = make_bso(job_spec(job_id="flat", max_epochs=1))
flat.get_batch_size()
flat.on_train_begin()
say(failed=said(lambda: flat.on_evaluate(0.1)))
say(out_of_step=said(flat.get_batch_size if RANK == 0 else lambda: flat.on_evaluate(0.5)))
say(order=said(lambda: flat.ranks.gather(1, about="sizes") if RANK == 0 else flat.ranks.gather(1, about="rates")))
dist.destroy_process_group()
