"""Ask a training script's questions: which batch size, go on or stop."""

from bso_optimizer import require_own_package

require_own_package()

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import NearestPowerProfile
from bso.domain.trial import Outcome
from bso.log_records import logger_of
from bso_client.async_optimizer import AsyncBatchSizeOptimizer, AsyncTrial
from bso_client.distributed.ranks import Ranks
from bso_client.energy import EnergyMonitor, Measurement, Monitor, NoMeter
from bso_client.errors import (
    RELAUNCH,
    BsoError,
    CannotResume,
    DistributedNotReady,
    InvalidReport,
    InvalidSetting,
    InvalidSpec,
    InvalidUrl,
    Misconfigured,
    NotInThisProcess,
    RankLost,
    RanksOutOfStep,
    Refused,
    Rejected,
    Retryable,
    SpecConflict,
    TrainFailed,
    Unreachable,
    WrongOrder,
)
from bso_client.job_spec import JobSpec
from bso_client.optimizer import BatchSizeOptimizer
from bso_client.power.optimizer import PowerLimitOptimizer
from bso_client.power.selection import Cost, Energy, LimitChoice, MaxSlowdown, Selection, Time
from bso_client.scaling import Accumulation, LearningRate
from bso_client.trial import Trial

__all__ = [
    "RELAUNCH",
    "Accumulation",
    "AsyncBatchSizeOptimizer",
    "AsyncTrial",
    "BatchSizeOptimizer",
    "BsoError",
    "CannotResume",
    "Cost",
    "DistributedNotReady",
    "Energy",
    "EnergyMethod",
    "EnergyMonitor",
    "HardwareKind",
    "InvalidReport",
    "InvalidSetting",
    "InvalidSpec",
    "InvalidUrl",
    "JobSpec",
    "LearningRate",
    "LimitChoice",
    "MaxSlowdown",
    "Measurement",
    "Misconfigured",
    "Monitor",
    "NearestPowerProfile",
    "NoMeter",
    "NotInThisProcess",
    "Outcome",
    "PowerLimitOptimizer",
    "PowerMeasurement",
    "RankLost",
    "Ranks",
    "RanksOutOfStep",
    "Refused",
    "Rejected",
    "Retryable",
    "Selection",
    "SpecConflict",
    "Time",
    "TrainFailed",
    "Trial",
    "Unreachable",
    "WrongOrder",
]

logger_of("bso")  # its handlers are the script's, and receive nothing that a terminal would obey
