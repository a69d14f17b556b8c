"""What trainers that run the loop themselves have in common: evaluations become reports, and nothing is raised."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from bso_client.errors import InvalidReport, InvalidSetting, RankLost, RanksOutOfStep, TrainFailed
from bso_client.once import warn_once
from bso_client.trial import Trial

logger = logging.getLogger("bso")

_BOOKKEEPING = frozenset(
    {"epoch", "step", "runtime", "samples_per_second", "steps_per_second", "model_preparation_time"}
)
"""What trainers put among the metrics and nobody optimizes for."""

_PLACE = ("trial_number", "recurrence_id", "batch_size", "epoch")


def check_trial(trial: object, *, asked_by: str) -> None:
    """Raise InvalidSetting for anything but a trial, such as the optimizer itself."""
    if not isinstance(trial, Trial):
        raise InvalidSetting(
            f"{asked_by} needs a trial, got {type(trial).__name__}: call it inside `for trial in bso.trials():`"
        )


class Reporter:
    """Reports a trainer's evaluations to a trial and says when to stop; whatever goes wrong is logged, not raised.

    ``metric`` is looked up under the names that ``names_of`` gives for it, in that order. ``samples_per_epoch``: count
    progress in samples seen instead of the trainer's own epochs. In data-parallel training every rank has one and calls
    the same methods in the same order.

    A training that could not be reported (no evaluation had the metric, or the trainer trains with another batch size)
    is called off with the reason: it says nothing about its batch size, and another attempt would go the same way.
    Raises InvalidSetting for anything but a trial.
    """

    def __init__(
        self, trial: Trial, metric: str, *, names: tuple[str, ...] = (), samples_per_epoch: float | None = None
    ) -> None:
        check_trial(trial, asked_by="BsoCallback")
        self.trial = trial
        self.metric = metric
        self.should_stop = False
        self._names = names or (metric,)
        self._samples_per_epoch = samples_per_epoch
        self._reached_before = 0.0
        self._last_epoch = 0.0
        self._has_reported = False
        self._refusal = ""
        self._missing_among: set[str] = set()
        self._is_missing_said = False

    @property
    def counts_samples(self) -> bool:
        """Whether progress is counted in samples."""
        return self._samples_per_epoch is not None

    @property
    def is_missing(self) -> bool:
        """Whether evaluations lacked the metric since it was last there."""
        return bool(self._missing_among)

    def begin(self, *, is_resumed: bool) -> None:
        """The trainer begins: from a checkpoint, or anew, which adds its epochs to those that the trial has had."""
        self._last_epoch = self.trial.epoch
        self._reached_before = 0.0 if is_resumed else self.trial.epoch

    def refuse(self, reason: str) -> None:
        """Report nothing of this training, for a reason that its user has to know."""
        if not self._refusal:
            self._refusal = reason
            logger.error("nothing is reported to the optimizer: %s", reason, extra={"action": "reports_refused"})

    def doubts(self) -> Iterator[str]:
        """What to say where a loss is the metric of a job whose metric is better when it is higher."""
        if self.metric.endswith("loss") and self.trial.spec.higher_is_better_metric:
            yield (
                f"{self.metric} is better when it is lower, but the job says that higher is better: a first loss above "
                f"{self.trial.spec.target_metric:g} would count as converged; set higher_is_better_metric=False in the "
                "JobSpec"
            )

    def knows(self, metrics: Mapping[str, Any]) -> bool:
        """Whether the metric is among these."""
        return any(name in metrics for name in self._names)

    def evaluated(self, metrics: Mapping[str, Any], *, epoch: float, samples: float | None = None) -> bool:
        """Report an evaluation after so many epochs (or samples) of this trainer; returns whether to stop.

        Not reported: an evaluation before the first step, a second one at the same point, one without the metric.
        """
        if self._refusal or self.should_stop:
            return self.should_stop
        if not self.knows(metrics):
            self._missing_among |= set(metrics)
            return False
        self._missing_among.clear()
        if self._samples_per_epoch is not None and samples is not None:
            epoch = samples / self._samples_per_epoch
        reached = self._reached_before + epoch
        if reached > self._last_epoch:
            self._last_epoch = reached
            value = next(metrics[name] for name in self._names if name in metrics)
            self.should_stop = self._report(value, reached)
        return self.should_stop

    def say_if_missing(self) -> None:
        """Warn, once, if the evaluations since the last call had everything but the metric."""
        if not self._missing_among or self._is_missing_said:
            return
        self._is_missing_said = True
        logger.warning(
            "%s, so it is not reported: %s",
            self._missing,
            _described(self._missing_among, self.metric),
            extra={"action": "metric_missing"},
        )

    def end(self) -> None:
        """The trainer has ended by itself. A training that was never reported is called off."""
        self.say_if_missing()
        if self._refusal or not self._has_reported:
            self._end(self.trial.call_off, self._refusal or self._why_nothing_was_reported())

    def preempted(self, reason: str) -> None:
        """The trainer has ended because the process is about to: the trial is interrupted."""
        self._end(self.trial.interrupt, reason)

    def _report(self, value: Any, epoch: float) -> bool:
        try:
            self.trial.on_evaluate(value, epoch=epoch)
        except TrainFailed:
            return True
        except InvalidReport as error:
            logger.warning("an evaluation is not reported: %s", error, extra={"action": "evaluation_ignored"})
            return False
        except Exception as error:  # noqa: BLE001  # a trainer still has to load its best model and to save
            self.refuse(str(error))
            return self.trial.finished or isinstance(error, RankLost | RanksOutOfStep)
        self._has_reported = True
        return self.trial.finished

    def _end(self, end: Callable[[str], None], reason: str) -> None:
        try:
            end(reason)
        except Exception:  # as above
            logger.exception("could not report the end of the training", extra={"action": "end_not_said"})

    def _why_nothing_was_reported(self) -> str:
        if self._missing_among:
            return f"{self._missing}: {_described(self._missing_among, self.metric)}"
        return "the training ended without an evaluation after its first step, so nothing was reported to the optimizer"

    @property
    def _missing(self) -> str:
        return f"the evaluation has no metric {' or '.join(map(repr, self._names))}"


def _described(found: Collection[str], wanted: str) -> str:
    """The names that can be a metric's, and the one that was probably meant."""
    names = sorted(name for name in found if _bare(name) not in _BOOKKEEPING)
    if not names:
        return "there is none at all"
    by_bare_name = {_bare(name): name for name in names}
    nearest = difflib.get_close_matches(_bare(wanted), by_bare_name, n=1, cutoff=0.5)
    question = f"; did you mean {by_bare_name[nearest[0]]!r}?" if nearest else ""
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names)}{question}"


def _bare(name: str) -> str:
    return re.sub(r"^(eval|val|valid|validation|test|train)[_/]", "", name.lower())


def learning_rate_for(trial: Trial, *, otherwise: float) -> float:
    """``trial.learning_rate``; ``otherwise`` if the optimizer was given no ``learning_rate=`` to scale."""
    try:
        return trial.learning_rate
    except InvalidSetting:
        return otherwise


def is_to_probe(trial: Trial, *, asked: bool | None) -> bool:
    """Whether a trainer's callback probes: where nobody said so, in a training of one process."""
    return trial.ranks.size == 1 if asked is None else asked


def is_of(trial: Trial, state: Mapping[str, Any]) -> bool:
    """Whether the state of a trial, as a checkpoint holds it, is where this trial stands."""
    return all(state.get(name) == getattr(trial, name) for name in _PLACE)


def warn_of_doubts(sentences: Iterable[str]) -> None:
    """Warn of what is legal and rarely meant: each sentence once in a process, however many trials it applies to."""
    for words in sentences:
        warn_once(words, action="trainer_doubtful")
