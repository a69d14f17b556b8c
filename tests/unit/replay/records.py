"""Records of a job, written down directly."""

from collections.abc import Mapping, Sequence
from typing import Any

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.job_spec import resolve_spec
from bso.domain.trial import Outcome, Trial, TrialState
from bso.replay.what_if.record import End, Record, RecordedRun
from tests.unit.replay.recurring_job import BEGINNING

HARDWARE = HardwareKind(gpu_model="A40", max_power_w=200.0, energy_method=EnergyMethod.NVML_COUNTER)


def trial(
    number: int,
    outcome: Outcome | None,
    epoch: float,
    *,
    batch_size: int = 32,
    hardware: HardwareKind = HARDWARE,
) -> Trial:
    """A trial whose epochs took 10 s and 1000 J."""
    return Trial(
        trial_number=number,
        trial_id=f"trial-{number}",
        version_number=1,
        recurrence_id=f"night-{number}",
        attempt=1,
        batch_size=batch_size,
        hardware=hardware,
        reason="",
        is_unbounded=False,
        started_at=BEGINNING,
        state=TrialState.RUNNING if outcome is None else TrialState.ENDED,
        reports=round(epoch),
        epoch=epoch,
        time_s=10.0 * epoch,
        energy_j=1000.0 * epoch,
        outcome=outcome,
    )


def run(batch_size: int, epochs: float, end: End = End.CONVERGED, *, reports: int | None = None) -> RecordedRun:
    """A training whose epochs took 10 s and 1000 J each."""
    return RecordedRun(
        batch_size=batch_size,
        end=end,
        epochs=epochs,
        reports=round(epochs) if reports is None else reports,
        priced_epochs=epochs,
        time_s=10.0 * epochs,
        energy_j=1000.0 * epochs,
    )


def record(
    runs: Sequence[RecordedRun],
    *,
    measurements: Mapping[int, tuple[PowerMeasurement, ...]] | None = None,
    infeasible: frozenset[int] = frozenset(),
    **changes: Any,
) -> Record:
    """A job with the batch sizes 16 to 128 of which these trainings are recorded."""
    fields = {"batch_sizes": [16, 32, 64, 128], "default_batch_size": 64, "target_metric": 0.9, "max_epochs": 50}
    outcomes = {
        End.CONVERGED: Outcome.CONVERGED,
        End.CENSORED: Outcome.COST_EXCEEDED,
        End.FAILED: Outcome.NOT_CONVERGED,
    }
    paid = [
        trial(number, outcomes[one.end], one.epochs, batch_size=one.batch_size)
        for number, one in enumerate(runs, start=1)
    ]
    too_large = [trial(len(runs) + size, Outcome.INFEASIBLE, 0, batch_size=size) for size in infeasible]
    return Record(
        job_id="nightly",
        version_number=1,
        spec=resolve_spec({"policy": "pruning_thompson", **fields, **changes}),
        hardware=HARDWARE,
        runs=tuple(runs),
        paid=(*paid, *too_large),
        measurements=measurements or {},
        infeasible=infeasible,
    )
