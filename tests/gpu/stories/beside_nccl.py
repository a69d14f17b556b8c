"""A rank whose process group is NCCL's: the optimizer's exchanges go beside it."""

import importlib
import os
from typing import Any

from bso_client.distributed.torch_ranks import TorchRanks
from tests.training.distributed.rank_notes import RANK, say

torch: Any = importlib.import_module("torch")
distributed = torch.distributed

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
distributed.init_process_group("nccl", device_id=device)
ranks = TorchRanks(timeout_s=60.0)
for about in ("first", "second"):
    say(broadcast=ranks.broadcast({"about": about, "data": b"x" * 100_000}, about=about)["about"])
    say(gathered=ranks.gather((RANK, about), about=about))
    ones = torch.ones(1, device=device)
    distributed.all_reduce(ones)
    say(reduced=float(ones))
ranks.leave_note("noted")
say(notes=[ranks.has_note("noted"), ranks.has_note("never")], backend=distributed.get_backend())
ranks.close()
distributed.all_reduce(ones)
say(current=ranks.is_current)
distributed.destroy_process_group()
say(still_current=ranks.is_current)
