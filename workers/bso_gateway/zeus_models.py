"""What Zeus' clients send and receive (zeus 0.16, zeus.optimizer.batch_size.common), with its rules for each field."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from bso.domain.commands import OnConflict, RegisterJob
from bso.domain.hardware import EnergyMethod, HardwareKind

_MOST = 2**63 - 1
_MOST_ATTEMPTS = 1000
"""Zeus knows no last attempt, which runs without a bound: under its rules a job has as many as can be."""


def _sorted(sizes: list[int]) -> list[int]:
    return sorted(sizes)


class ZeusJobSpec(BaseModel):
    """A job as a client registers it. Without a job_id it gets one that begins with the prefix. Powers in watts.

    ``max_power`` is that of all GPUs together.
    """

    job_id: str | None = None
    job_id_prefix: str
    batch_sizes: Annotated[list[int], Field(min_length=1), AfterValidator(_sorted)]
    default_batch_size: int = Field(gt=0)
    eta_knob: float = Field(default=0.5, ge=0, le=1)
    beta_knob: float | None = Field(default=2.0, gt=0)
    target_metric: float = 0.5
    higher_is_better_metric: bool = True
    max_epochs: int = Field(default=100, gt=0)
    num_pruning_rounds: int = Field(default=2, ge=0)
    window_size: int = 0
    mab_prior_mean: float = 0.0
    mab_prior_precision: float = 0.0
    mab_num_explorations: int = Field(default=2, ge=0)
    mab_seed: int | None = None
    max_power: float = Field(gt=0)
    number_of_gpus: int = Field(gt=0)
    gpu_model: str = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.default_batch_size not in self.batch_sizes:
            raise ValueError(f"Default BS({self.default_batch_size}) not in batch_sizes({self.batch_sizes}).")
        if self.job_id is not None and not self.job_id.startswith(self.job_id_prefix):
            raise ValueError(f"Job_id({self.job_id}) does not start with prefix({self.job_id_prefix}).")
        return self

    @property
    def specification(self) -> dict[str, Any]:
        """The fields of the job's specification."""
        return self.model_dump(exclude={"job_id", "job_id_prefix", "max_power", "number_of_gpus", "gpu_model"})

    @property
    def hardware(self) -> HardwareKind:
        """What all its trials run on. A ZeusMonitor measures their energy, by whatever counter."""
        return HardwareKind(
            gpu_model=self.gpu_model,
            max_power_w=self.max_power,
            number_of_gpus=self.number_of_gpus,
            energy_method=EnergyMethod.MONITOR,
        )

    def registration(self, *, policy: str | None, is_strict: bool) -> RegisterJob:
        """The command that registers it; a new job gets this policy, None: the default one."""
        chosen = {} if policy is None else {"policy": policy}
        return RegisterJob(
            spec=self.specification,
            job_id_prefix=self.job_id_prefix,
            on_conflict=OnConflict.REFUSE_CHANGES,
            hardware=self.hardware,
            defaults=chosen | ({"max_attempts": _MOST_ATTEMPTS} if is_strict else {}),
        )


class TrialId(BaseModel):
    """A training and the batch size that it has."""

    job_id: str
    batch_size: int = Field(ge=-_MOST, le=_MOST)
    trial_number: int = Field(ge=-_MOST, le=_MOST)


class TrainingResult(TrialId):
    """What a training has reached after an epoch: seconds and joules since its beginning."""

    time: float
    energy: float
    metric: float
    current_epoch: int = Field(ge=-_MOST, le=_MOST)


class ReportResponse(BaseModel):
    """Whether to stop the training; if so, whether it has reached its target."""

    stop_train: bool
    converged: bool
    message: str


class ErrorMessage(BaseModel):
    """An error."""

    message: str


class MethodUnknown(BaseModel):
    """The error for a path that is known with other methods."""

    detail: str


class Fault(BaseModel):
    """What is wrong with one field of a body, or of a query."""

    type: str
    loc: list[str | int]
    msg: str


class Detail(BaseModel):
    """The error for a body that is not as expected."""

    detail: list[Fault]
