"""Finds the power limit at which a training costs least, while it trains."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bso_client.distributed import Ranks
from bso_client.energy.meters import DEVICE_VARIABLES
from bso_client.energy.monitor import Monitor
from bso_client.errors import InvalidSetting, WrongOrder
from bso_client.power.follower import Arguments, Follower
from bso_client.power.limits import default_lock_folder
from bso_client.power.selection import Cost, Selection
from bso_client.settings import read_settings

logger = logging.getLogger("bso")

_NOT_ASYNC = "for an AsyncBatchSizeOptimizer there is no power limit"

T = TypeVar("T")


class PowerLimitOptimizer:
    """Profiles the power limits of the GPUs during the first training steps, and goes on with the best one.

    The limits [W], from the highest to the lowest, get ``warmup_steps`` and then ``profile_steps`` training steps
    each; average power [W] and throughput [samples/s] follow, and ``selection`` chooses. One limit holds for each GPU
    of this process; under torch.distributed for those of all ranks (make one on every rank), at the same steps.
    Limits are restored when it is closed, or when the process has ended, even by SIGKILL.

    Lower limits are left out once a sample takes more time and energy than under a higher one (``is_low_enough``).

    With ``bso`` it follows that optimizer's trials: a profile that is known of the job, batch size and hardware kind
    is used at once, else it is measured and reported, and the epochs that it distorts are marked. While no limit is
    tested, such a trial trains and evaluates under the limit that is best for the nearest batch size with a profile;
    where there is one, limits are tested after the first evaluation. Without ``bso``, a profile is kept in a file if
    ``profile_path`` or ``profile_key`` is given.

    ``selection``         Cost() (the job's eta_knob), Energy(), Time(), MaxSlowdown(factor)
    ``wait_steps``        steps before the first limit is tested; the first steps of a training are not typical
    ``warmup_steps``      steps under a limit before it is measured
    ``profile_steps``     steps that are measured; 40, but at least a second, since meters are no faster
    ``step_w``            from one limit to the next [W]
    ``samples_per_step``  samples that this process trains on between two on_step_begin (default: its share of the batch
                          size; without a job PowerLimitCallback's value, else 1, with a warning where a file keeps
                          the profile: all batch sizes would share it)
    ``monitor``           measures the windows, as BatchSizeOptimizer's (default: an EnergyMonitor of the same GPUs)
    ``gpu_indices``       the GPUs, as CUDA_VISIBLE_DEVICES shows them (default: all of this process)
    ``profile_path``      the file of a training without a job (default: power-profiles.json in the state directory)
    ``profile_key``       distinguishes trainings in that file, beside the GPUs and samples_per_step
    ``ranks``             without a job: how ranks talk to each other (default: torch.distributed, if it is in use)
    ``lock_folder``       where processes of this machine note whose limit is whose (default: /run/lock)

    Without a GPU it does nothing and says so; without permission to set limits it explains once what is needed, and
    nothing else changes. Raises InvalidSetting for arguments, WrongOrder for a step before the first trial; the
    hooks raise nothing else.
    """

    def __init__(
        self,
        bso: Any = None,
        *,
        selection: Selection | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        step_w: float = 25,
        samples_per_step: float | None = None,
        monitor: Monitor | None = None,
        gpu_indices: Sequence[int] | None = None,
        profile_path: str | Path | None = None,
        profile_key: str | None = None,
        ranks: Ranks | None = None,
        lock_folder: str | Path | None = None,
    ) -> None:
        _check_numbers(wait_steps=wait_steps, warmup_steps=warmup_steps, profile_steps=profile_steps)
        _check_positive(step_w=step_w, samples_per_step=samples_per_step)
        _check_bso(bso, profile_path=profile_path, profile_key=profile_key, ranks=ranks)
        arguments = Arguments(
            selection=selection or Cost(),
            wait_steps=wait_steps,
            warmup_steps=warmup_steps,
            profile_steps=profile_steps,
            step_w=step_w,
            samples_per_step=samples_per_step,
            monitor=monitor,
            gpu_indices=None if gpu_indices is None else tuple(gpu_indices),
            profile_path=_profile_path(profile_path, profile_key),
            profile_key=profile_key or "training",
            environ={name: os.environ[name] for name in DEVICE_VARIABLES if name in os.environ},
            lock_folder=Path(lock_folder) if lock_folder else default_lock_folder(),
        )
        self._pid = os.getpid()
        self._follower: Follower | None = Follower(bso, arguments, ranks=ranks)
        self._is_in_epoch = False
        self._epochs = 0
        self._is_step_complete = True

    @property
    def power_limit_w(self) -> float | None:
        """The best power limit [W] of each GPU for the current training; None while it is not known."""
        return None if self._follower is None else self._follower.best_w

    @property
    def is_profiling(self) -> bool:
        """Whether power limits are being measured, or waiting for the steps to measure them."""
        return self._follower is not None and self._follower.is_profiling

    def count_samples(self, samples_per_step: float) -> None:
        """Say how many samples a step has, before the first one; what was given, or a job knows, is not changed."""
        _check_positive(samples_per_step=samples_per_step)
        if self._follower is not None:
            self._follower.count_samples(samples_per_step)

    def on_epoch_begin(self) -> None:
        """Training steps follow."""
        if not self._is_in_epoch:
            self._safely(Follower.begin_epoch)
            self._is_in_epoch = True
            self._epochs += 1

    def on_step_begin(self) -> None:
        """A training step begins: its batch is there."""
        self.on_epoch_begin()
        self._safely(Follower.begin_step)
        self._is_step_complete = False

    def on_step_end(self) -> None:
        """The training step has ended. Optional: it saves the last window of an epoch."""
        self._is_step_complete = True

    def on_epoch_end(self) -> None:
        """No more steps for now: what is not measured to its end is measured in the next epoch."""
        if self._is_in_epoch:
            self._is_in_epoch = False
            self._safely(lambda follower: follower.end_epoch(is_step_complete=self._is_step_complete))

    def steps(self, batches: Iterable[T]) -> Generator[T, None, None]:
        """An epoch over these batches, each of them one training step: calls the hooks by itself."""
        self.on_epoch_begin()
        epoch = self._epochs
        try:
            for batch in batches:
                self.on_step_begin()
                yield batch
                self.on_step_end()
        except BaseException:
            if self._is_in_epoch and epoch == self._epochs:  # a generator may be closed long after it was left
                self._is_in_epoch = False
                self._safely(Follower.leave_epoch)
            raise
        self.on_epoch_end()

    def close(self) -> None:
        """Restore the power limits that were found, and stop; idempotent. Done at the end of the process at latest."""
        follower, self._follower = self._follower, None
        if follower is not None and self._pid == os.getpid():
            follower.close()

    def __enter__(self) -> Self:
        """For ``with PowerLimitOptimizer(...) as power_limit:``, which closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process: it does nothing."""
        return self.__dict__ | {"_follower": None, "_pid": -1}

    def _safely(self, hook: Callable[[Follower], None]) -> None:
        """Call it; what it raises beside WrongOrder ends the tuning, not the training."""
        if self._follower is None or self._pid != os.getpid():
            return
        try:
            hook(self._follower)
        except WrongOrder:
            raise
        except Exception:
            logger.exception("the power limit is left as it was found", extra={"action": "power_limit_failed"})
            self.close()


def _check_numbers(**steps: int) -> None:
    for name, number in steps.items():
        least = 1 if name == "profile_steps" else 0
        if number != int(number) or number < least:
            raise InvalidSetting(f"{name} must be a whole number of {least} or more, got {number!r}")


def _check_positive(**numbers: float | None) -> None:
    for name, number in numbers.items():
        if number is not None and not 0 < number < float("inf"):
            raise InvalidSetting(f"{name} must be a positive number, got {number!r}")


def _check_bso(bso: Any, **for_lone_trainings: object) -> None:
    if bso is None:
        return
    if not hasattr(bso, "trial") or hasattr(bso, "__aenter__"):
        instead = "pass a monitor as monitor=" if hasattr(bso, "begin_window") else _NOT_ASYNC
        raise InvalidSetting(
            f"expected a BatchSizeOptimizer or None as the first argument, got {type(bso).__name__}; {instead}"
        )
    given = [name for name, value in for_lone_trainings.items() if value is not None]
    if given:
        raise InvalidSetting(f"{' and '.join(given)} is for trainings without a job: with bso, the optimizer keeps it")


def _profile_path(path: str | Path | None, key: str | None) -> Path | None:
    if path is not None:
        return Path(path).expanduser()
    return None if key is None else read_settings(os.environ).resolved_state_dir / "power-profiles.json"
