"""A training in a checkpoint: what has to be known to resume its trial in another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.job_spec import JobSpec
from bso.domain.profiling import Totals
from bso_client.errors import CannotResume
from bso_client.meter import Consumption
from bso_client.progress import Progress

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A trial at the time of a checkpoint; ``time_s`` and ``energy_j`` are those of the training up to there.

    ``is_profiling``: power limits were profiled between its last report and the checkpoint.
    """

    job_id: str
    trial_number: int | None
    trial_id: str | None
    recurrence_id: str | None
    attempt: int
    is_last_attempt: bool
    batch_size: int
    epoch: float
    metric: float | None
    nonfinite_metrics_in_a_row: int
    bound: float | None
    time_s: float
    energy_j: float | None
    hardware: HardwareKind
    is_profiling: bool = False

    @property
    def consumed(self) -> Consumption:
        """Time and energy up to the checkpoint."""
        return Consumption(time_s=self.time_s, energy_j=self.energy_j)

    def progress_under(self, spec: JobSpec) -> Progress:
        """The training at the checkpoint, to go on under this specification."""
        return Progress(
            batch_size=self.batch_size,
            reason="resumed from a saved state",
            spec=spec,
            hardware=self.hardware,
            attempt=self.attempt,
            is_last_attempt=self.is_last_attempt,
            trial_number=self.trial_number,
            trial_id=self.trial_id,
            recurrence_id=self.recurrence_id,
            bound=self.bound,
            totals=Totals(epoch=self.epoch, time_s=self.time_s, energy_j=self.energy_j or 0.0),
            epoch=self.epoch,
            metric=self.metric,
            nonfinite_metrics_in_a_row=self.nonfinite_metrics_in_a_row,
            is_profiling=self.is_profiling,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for torch.save, pickle or JSON."""
        hardware = asdict(self.hardware) | {"energy_method": self.hardware.energy_method.value}
        return {"format": _FORMAT, **asdict(self), "hardware": hardware}


def saved_state_of(job_id: str, progress: Progress, consumed: Consumption) -> SavedState:
    """The state of a training now."""
    return SavedState(
        job_id=job_id,
        trial_number=progress.trial_number,
        trial_id=progress.trial_id,
        recurrence_id=progress.recurrence_id,
        attempt=progress.attempt,
        is_last_attempt=progress.is_last_attempt,
        batch_size=progress.batch_size,
        epoch=progress.epoch,
        metric=progress.metric,
        nonfinite_metrics_in_a_row=progress.nonfinite_metrics_in_a_row,
        bound=progress.bound,
        time_s=consumed.time_s,
        energy_j=consumed.energy_j,
        hardware=progress.hardware,
        is_profiling=progress.is_profiling,
    )


def read_saved_state(data: Mapping[str, Any]) -> SavedState:
    """What state_dict gave. Raises CannotResume if it is something else."""
    try:
        if data["format"] != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, got {data['format']!r}")
        required = SavedState.__dataclass_fields__.keys() - {"hardware", "is_profiling"}
        fields = {name: data[name] for name in required}
        fields["is_profiling"] = bool(data.get("is_profiling", False))  # states of the first release have none
        hardware = dict(data["hardware"])
        hardware["energy_method"] = EnergyMethod(hardware["energy_method"])
        return SavedState(**fields, hardware=HardwareKind(**hardware))
    except (KeyError, TypeError, ValueError) as error:
        raise CannotResume(
            f"this is not what state_dict() gave ({error!r}): hand back the mapping that it returned, or train anew"
        ) from error
