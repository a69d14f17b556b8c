"""Two ranks of one machine with one GPU or two, measured in two ways: nothing may be counted twice."""

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch.distributed as dist

from tests.fakes.gpus import FakeGpus
from tests.training.distributed.rank_notes import RANK, job_spec, join, make_bso, say

cupy = ModuleType("cupy")  # what Zeus waits with in its place: the PyTorch of these tests knows no CUDA
cupy.cuda = SimpleNamespace(Device=lambda index: SimpleNamespace(synchronize=lambda: None))  # type: ignore[attr-defined]
sys.modules["cupy"] = cupy

from zeus.monitor import ZeusMonitor  # noqa: E402

count = int(sys.argv[1])
gpus = FakeGpus(Path(os.environ["BSO_FAKE_NVML"]))
join()
for name, monitor in (("zeus", ZeusMonitor(sync_execution_with="cupy")), ("own", None)):
    with make_bso(job_spec(job_id=name), monitor=monitor) as bso:
        for trial in bso.trials():
            with trial:
                dist.barrier()
                gpus.consume(RANK % count, 100.0 * (RANK + 1))
                dist.barrier()
                trial.on_evaluate(0.95)
            say(
                gpus=trial.hardware.number_of_gpus,
                max_power_w=trial.hardware.max_power_w,
                model=trial.hardware.gpu_model,
            )
dist.destroy_process_group()
