"""Records of a job, written down directly."""

from collections.abc import Mapping, Sequence
from typing import Any

from bso.domain.commands import PowerMeasurement
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.job_spec import resolve_spec
from bso.replay.what_if.recorded import End, Paid, Record, RecordedRun

HARDWARE = HardwareKind(gpu_model="A40", max_power_w=200.0, energy_method=EnergyMethod.NVML_COUNTER)


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
    **changes: Any,
) -> Record:
    """A job with the batch sizes 16 to 128 of which these trainings are recorded."""
    fields = {"batch_sizes": [16, 32, 64, 128], "default_batch_size": 64, "target_metric": 0.9, "max_epochs": 50}
    return Record(
        job_id="nightly",
        version_number=1,
        spec=resolve_spec({"policy": "pruning_thompson", **fields, **changes}),
        hardware=HARDWARE,
        runs=tuple(runs),
        paid=tuple(
            Paid(
                batch_size=one.batch_size,
                has_converged=one.end is End.CONVERGED,
                time_s=one.time_s,
                energy_j=one.energy_j,
            )
            for one in runs
        ),
        measurements=measurements or {},
    )
