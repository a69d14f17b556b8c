"""Small problems, written as trace files and made directly."""

import math
from pathlib import Path

from bso.simulator import BatchSizeProblem, Workload
from bso.simulator.traces import MeasuredEpoch

SIZES = (16, 32, 64, 128)
WORKLOAD = Workload(
    dataset="shapes",
    network="tiny",
    optimizer="sgd",
    target_metric=0.9,
    max_epochs=50,
    default_batch_size=64,
)
TRAIN = """dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch
shapes,tiny,32,sgd,0.1,1,0.8,3
shapes,tiny,32,sgd,0.1,1,0.9,5
shapes,tiny,32,sgd,0.1,2,0.8,4
shapes,tiny,32,sgd,0.1,2,0.9,nan
shapes,tiny,64,sgd,0.1,1,0.9,6
shapes,tiny,128,sgd,0.1,1,0.9,9
"""
POWER = """dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power
shapes,tiny,32,sgd,100,20,90
shapes,tiny,32,sgd,200,10,150
shapes,tiny,64,sgd,100,12,95
shapes,tiny,64,sgd,200,8,160
"""
WORKLOADS = """dataset,network,optimizer,target_metric,max_epochs,default_batch_size
shapes,tiny,sgd,0.9,50,64
"""


def write_traces(folder: Path, *, train: str = TRAIN, power: str = POWER) -> Path:
    """Trace files as text; the GPU is called g1."""
    (folder / "summary_train.csv").write_text(train)
    (folder / "summary_power_g1.csv").write_text(power)
    return folder


def write_known_traces(folder: Path, *, train: str = TRAIN) -> Path:
    """The same with the file that describes their workload."""
    (folder / "workloads.csv").write_text(WORKLOADS)
    return write_traces(folder, train=train)


def make(
    epochs: dict[int, tuple[int | None, ...]], *, default: int = 64, max_epochs: int = 50, epoch_time_s: float = 10.0
) -> BatchSizeProblem:
    """A problem whose epochs all take this long: at the lower limit a fifth longer, with half the power."""
    return BatchSizeProblem(
        workload=Workload(
            dataset="shapes",
            network="tiny",
            optimizer="sgd",
            target_metric=0.9,
            max_epochs=max_epochs,
            default_batch_size=default,
        ),
        gpu="g1",
        max_power_w=200.0,
        runs=epochs,
        epochs={
            size: (
                MeasuredEpoch(power_limit_w=100.0, time_s=1.2 * epoch_time_s, average_power_w=100.0),
                MeasuredEpoch(power_limit_w=200.0, time_s=epoch_time_s, average_power_w=200.0),
            )
            for size in epochs
        },
    )


def profiling_shares(problem: BatchSizeProblem, batch_size: int, *, is_first: bool) -> dict[float, float]:
    """What a training of such a problem does in the epoch in which it profiles power limits, if that is long enough.

    The ``is_first`` of the job starts at the higher limit, any other one at the best of another batch size, the lower,
    and has an epoch under it before. The second step is the first of fifty under the higher limit; all after these are
    under the lower one.
    """
    steps = math.ceil(problem.workload.samples / batch_size)
    high = (51 if is_first else 50) / steps
    return {200.0: high, 100.0: 1.0 - high}
