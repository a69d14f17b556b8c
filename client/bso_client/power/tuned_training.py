"""What a power limit is tuned for: a trial of a job, or a training on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bso.domain.commands import PowerMeasurement
from bso_client.power.profile_file import ProfileFile
from bso_client.power.selection import DEFAULT_ETA_KNOB


class TunedTraining(Protocol):
    """One training whose power limit is tuned."""

    @property
    def eta_knob(self) -> float:
        """The job's eta_knob."""
        ...

    @property
    def max_power_w(self) -> float | None:
        """The largest power [W] of all GPUs together, as the job's cost counts it; None: what the GPUs say."""
        ...

    @property
    def samples_per_step(self) -> float | None:
        """The samples of a step, of all ranks together; None: only what the user says is known."""
        ...

    def profile(self) -> tuple[PowerMeasurement, ...]:
        """What is known; empty if nothing is."""
        ...

    def keep(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep what was measured for the next training of the kind; never raises."""
        ...

    def mark_profiling(self) -> None:
        """The epoch that is being trained is distorted by profiling."""
        ...


class TrialTraining:
    """A trial of a job: its profile is kept by the optimizer, by job, batch size and hardware kind."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial
        self.eta_knob: float = trial.spec.eta_knob
        self.max_power_w: float | None = trial.hardware.max_power_w
        self.samples_per_step: float | None = trial.batch_size

    def profile(self) -> tuple[PowerMeasurement, ...]:
        """What the optimizer knows of this batch size on this hardware kind."""
        return tuple(self.trial.power_profile)

    def keep(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Report it; delivered later if the optimizer is away."""
        self.trial.report_power_profile(measurements)

    def mark_profiling(self) -> None:
        """Mark the next report."""
        self.trial.mark_profiling()


class LoneTraining:
    """A training without a job: its profile is kept in a file, under a key, or not at all."""

    eta_knob = DEFAULT_ETA_KNOB
    max_power_w: float | None = None
    samples_per_step: float | None = None

    def __init__(self, file: ProfileFile | None, key: str) -> None:
        self._file, self._key = file, key

    def profile(self) -> tuple[PowerMeasurement, ...]:
        """What the file holds."""
        return () if self._file is None else self._file.read(self._key)

    def keep(self, measurements: Sequence[PowerMeasurement]) -> None:
        """Write it into the file."""
        if self._file is not None:
            self._file.write(self._key, measurements)

    def mark_profiling(self) -> None:
        """Nobody counts the cost of this training."""
