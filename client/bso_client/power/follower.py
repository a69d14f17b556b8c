"""Follows the trainings of a process: each one starts at its best known power limit, or is profiled."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bso.domain.commands import PowerMeasurement
from bso.domain.errors import BsoError
from bso.domain.power_sweep import Plan, begin_profiling, is_low_enough, limits_between
from bso.domain.replies import NearestPowerProfile
from bso_client.distributed.ranks import Alone, Ranks, is_initialized
from bso_client.distributed.torch_ranks import TorchRanks
from bso_client.energy.monitor import Monitor
from bso_client.errors import WrongOrder
from bso_client.power.agreement import Opening, joint_opening, reduced, resume_together, stand_of
from bso_client.power.limits import Installation, LimitNotSet, installed
from bso_client.power.selection import LimitChoice, Selection
from bso_client.power.tuner import LoneTraining, ProfileFile, TrialTraining, TunedTraining, Tuner

logger = logging.getLogger("bso")

_ABOUT = "power limits (PowerLimitOptimizer's hooks)"

_RANKS_TIMEOUT_S = 30.0
"""Half of what an exchange about the trial waits: a rank that gives up here still comes in time there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What PowerLimitOptimizer was given."""

    selection: Selection
    wait_steps: int
    warmup_steps: int
    profile_steps: int
    step_w: float
    samples_per_step: float | None
    monitor: Monitor | None
    gpu_indices: tuple[int, ...] | None
    profile_path: Path | None
    profile_key: str
    environ: Mapping[str, str]
    lock_folder: Path


class Follower:
    """The power limit of one training after the other."""

    def __init__(self, bso: Any, arguments: Arguments, *, ranks: Ranks | None) -> None:
        self.best_w: float | None = None
        self._bso = bso
        self._arguments = arguments
        self._given_ranks = ranks
        self._ranks: Ranks = ranks or Alone()
        self._training: TunedTraining | None = None
        self._tuner: Tuner | None = None
        self._max_power_w = 0.0
        self._installation: Installation | None = None
        self._problem = ""
        self._has_agreed = False
        self._measured: dict[float | None, tuple[PowerMeasurement, ...]] = {}

    @property
    def is_profiling(self) -> bool:
        """Whether the current training's limits are still to be measured."""
        return self._tuner is not None

    def count_samples(self, samples_per_step: float) -> None:
        """Take this for the samples of a step, where neither the user nor a job has said it."""
        if self._bso is None and self._arguments.samples_per_step is None:
            self._arguments = replace(self._arguments, samples_per_step=samples_per_step)

    def begin_epoch(self) -> None:
        """Steps follow. Raises WrongOrder before the first trial."""
        self._follow()
        if self._installation is not None:
            try:
                self._installation.limit.keep_guarded()
            except LimitNotSet as error:
                self._give_up(str(error))

    def begin_step(self) -> None:
        """A training step begins."""
        if self._bso is not None:
            self._follow()
        if self._tuner is None or self._training is None or self._has_agreed or not self._training.may_be_profiled:
            return
        self._tuner.begin_step()
        if self._tuner.state.is_under_test:
            self._training.mark_profiling()
        if self._is_measured(self._tuner):
            self._agree(self._tuner)

    def end_epoch(self, *, is_step_complete: bool) -> None:
        """The epoch ends, on all ranks."""
        if self._tuner is not None:
            self._tuner.end_epoch(is_step_complete=is_step_complete)
            if not self._has_agreed and (self._ranks.size > 1 or self._is_measured(self._tuner)):
                self._agree(self._tuner)
        self._has_agreed = False

    def leave_epoch(self) -> None:
        """The epoch was left: nothing that ranks would have to agree on."""
        if self._tuner is not None and not self._tuner.state.is_done:
            self._tuner.end_epoch(is_step_complete=False)
        self._has_agreed = False

    def close(self) -> None:
        """Restore the limits."""
        tuner, self._tuner = self._tuner, None
        installation, self._installation = self._installation, None
        self._problem = self._problem or "the power limit optimizer was closed"
        if tuner is not None:
            tuner.drop_window()
        if installation is not None:
            installation.close()
        if self._ranks is not self._given_ranks and isinstance(self._ranks, TorchRanks):
            self._ranks.close()

    def _follow(self) -> None:
        """If another training has begun, begin with its limit."""
        training = self._current()
        if training is not None:
            self.leave_epoch()
            self._training, self._tuner, self.best_w = training, None, None
            self._begin(training)

    def _current(self) -> TunedTraining | None:
        """The training that has begun since the last look; None: it is the same."""
        if self._bso is None:
            if self._training is not None:
                return None
            self._ranks = self._given_ranks or _ranks_of_process()
            return self._lone_training()
        before = self._training.trial if isinstance(self._training, TrialTraining) else None
        if before is not None and not before.finished:  # quick: this is asked at every step
            return None
        trial = self._bso.trial
        if trial is None:
            raise WrongOrder("a training step came before get_batch_size(): that comes first, or bso.trials()")
        if before == trial:
            return None
        self._ranks = _ranks_beside(trial.ranks, self._ranks)
        return TrialTraining(trial)

    def _lone_training(self) -> TunedTraining:
        arguments, installation = self._arguments, self._install()
        if arguments.profile_path is None or installation is None:
            return LoneTraining(None, "")
        if arguments.samples_per_step is None:
            logger.warning(
                "without samples_per_step= the profile %r is taken for every batch size: pass PowerLimitOptimizer the "
                "samples that this process trains on in a step",
                arguments.profile_key,
                extra={"action": "samples_per_step_unknown"},
            )
        samples = f"{arguments.samples_per_step or 1:g} samples a step"
        hardware = f"{self._ranks.size} x {installation.limit.describe()}"
        return LoneTraining(ProfileFile(arguments.profile_path), f"{arguments.profile_key}, {samples}, {hardware}")

    def _begin(self, training: TunedTraining) -> None:
        try:
            opening = joint_opening(self._ranks.gather(self._opening(training), about=_ABOUT))
        except BsoError as error:
            opening = Opening(problem=f"the ranks could not agree on power limits: {error}")
        if opening.problem:
            self._give_up(opening.problem)
            return
        self._max_power_w = training.max_power_w or opening.max_power_w
        if opening.profile:
            self._settle(self._new_tuner(training, opening, resting_w=opening.highest_w), opening.profile)
        elif opening.nearest is None:
            self._start(training, opening, opening.highest_w)
        else:
            self._start_as(opening.nearest, training, opening)

    def _start(self, training: TunedTraining, opening: Opening, limit_w: float) -> bool:
        """Train under a limit until those of this training are measured; returns whether it could be set."""
        self._tuner = self._new_tuner(training, opening, resting_w=limit_w)
        return self._tuner.set(limit_w)

    def _start_as(self, nearest: NearestPowerProfile, training: TunedTraining, opening: Opening) -> None:
        """Start at the best limit of another batch size."""
        choice = self._choice(nearest.measurements, training)
        if self._start(training, opening, choice.power_limit_w):
            logger.info(
                "the power limit starts at %g W, the best one of batch size %d, until this batch size is measured",
                choice.power_limit_w,
                nearest.batch_size,
                extra={"action": "power_limit_started", "power_limit_w": choice.power_limit_w},
            )

    def _opening(self, training: TunedTraining) -> Opening:
        installation = self._install()
        if installation is None:
            return Opening(problem=self._problem)
        return Opening(
            highest_w=installation.limit.highest_w,
            lowest_w=installation.limit.lowest_w,
            max_power_w=installation.limit.max_power_w,
            profile=training.profile() or self._measured.get(training.samples_per_step, ()),
            nearest=training.nearest_profile(),
        )

    def _install(self) -> Installation | None:
        """The GPUs, their limit and their meter; None: with a problem, which was logged once."""
        if self._installation is None and not self._problem:
            with contextlib.nullcontext() if self._bso is None else self._bso.paused():  # not the training's time
                found = installed(
                    environ=self._arguments.environ,
                    gpu_indices=self._arguments.gpu_indices,
                    monitor=self._arguments.monitor,
                    lock_folder=self._arguments.lock_folder,
                )
            if isinstance(found, Installation):
                self._installation = found
            else:
                self._problem = found
        return self._installation

    def _new_tuner(self, training: TunedTraining, opening: Opening, *, resting_w: float) -> Tuner:
        arguments, installation = self._arguments, self._installation
        assert installation is not None
        plan = Plan(
            limits_w=limits_between(opening.highest_w, opening.lowest_w, step_w=arguments.step_w),
            resting_w=resting_w,
            wait_steps=arguments.wait_steps,
            warmup_steps=arguments.warmup_steps,
            profile_steps=arguments.profile_steps,
        )
        share = (training.samples_per_step or self._ranks.size) / self._ranks.size
        return Tuner(
            begin_profiling(plan),
            limit=installation.limit,
            monitor=installation.monitor,
            samples_per_step=arguments.samples_per_step or share,
        )

    def _is_measured(self, tuner: Tuner) -> bool:
        """Whether this rank has measured what it needs. What several ranks need, they see when an epoch ends."""
        return tuner.state.is_done or (self._ranks.size == 1 and is_low_enough(reduced([tuner.windows])))

    def _agree(self, tuner: Tuner) -> None:
        """Report this rank's progress to the others: at the end of the profile or of the epoch, once per epoch."""
        self._has_agreed = True
        try:
            stands = self._ranks.gather(stand_of(tuner.state, tuner.windows), about=_ABOUT)
        except BsoError as error:
            self._give_up(f"the ranks could not agree on power limits: {error}")
            return
        tuner.resume(resume_together(tuner.state, stands))
        if tuner.state.is_done:
            self._conclude(tuner, reduced([stand.windows for stand in stands]))

    def _conclude(self, tuner: Tuner, profile: tuple[PowerMeasurement, ...]) -> None:
        assert self._training is not None
        if not profile:
            self._give_up(
                "no power limit could be measured: if the meter measured 0 J, the steps were too short for it; raise "
                "profile_steps"
            )
            return
        tuner.warn_of_short_windows()
        self._measured[self._training.samples_per_step] = profile
        if self._ranks.rank == 0:
            self._training.keep(profile)
        self._settle(tuner, profile)

    def _settle(self, tuner: Tuner, profile: Sequence[PowerMeasurement]) -> None:
        """Set the best limit for the rest of this training."""
        assert self._training is not None
        choice = self._choice(profile, self._training)
        self._tuner = None
        if tuner.set(choice.power_limit_w):
            self.best_w = choice.power_limit_w
            extra = {"action": "power_limit_chosen", "power_limit_w": choice.power_limit_w}
            logger.info("the power limit is %s", choice.reason, extra=extra)

    def _choice(self, profile: Sequence[PowerMeasurement], training: TunedTraining) -> LimitChoice:
        selection = self._arguments.selection
        return selection.select(profile, eta_knob=training.eta_knob, max_power_w=self._max_power_w)

    def _give_up(self, problem: str) -> None:
        if not self._problem:
            logger.warning("no power limit is tuned: %s", problem, extra={"action": "power_limit_unavailable"})
            self._problem = problem
        self.close()


def _ranks_beside(given: Ranks, before: Ranks) -> Ranks:
    """Own ranks beside those of a trial; the same ones again for the same ranks. Collective.

    A process group of its own: what goes wrong in it must not be mistaken for an exchange about the trial, which ends
    trainings.
    """
    if not isinstance(given, TorchRanks) or given.size == 1:
        return given
    if isinstance(before, TorchRanks) and before.is_current and before.size == given.size:
        return before
    return TorchRanks(timeout_s=given.timeout_s / 2, local_rank=given.local_rank)


def _ranks_of_process() -> Ranks:
    """The ranks of torch.distributed, if it is in use, else this process alone."""
    return TorchRanks(timeout_s=_RANKS_TIMEOUT_S) if is_initialized() else Alone()
