"""The attempts of one recurrence as this machine knows them: the next one, what to try alone, when the loop ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bso.domain.job_spec import JobSpec
from bso.domain.trial import OUT_OF_MEMORY, Outcome, reason_code
from bso_client.errors import WrongOrder
from bso_client.training.state import Notice, TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A training that has failed: its batch size, and whether that did not fit in memory."""

    batch_size: int
    is_out_of_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRecurrence:
    """The recurrence that trials now belong to, of those that one process works for, one after the other.

    ``given_id`` None: the optimizer names them. ``failed`` are its trainings that have failed.
    """

    given_id: str | None
    recurrence_id: str | None
    count: int = 1
    failed: tuple[Failure, ...] = ()

    @property
    def attempt(self) -> int:
        """The number of the next attempt, as far as this machine knows."""
        return len(self.failed) + 1

    def gone_on_with(self, given_id: str | None, failed: tuple[Failure, ...]) -> CurrentRecurrence:
        """The recurrence with what has failed in earlier processes, if those worked for the same one."""
        is_same = self.count == 1 and not self.failed and given_id == self.given_id
        return replace(self, failed=failed) if is_same else self

    def after(self, last: TrainingState | None) -> CurrentRecurrence:
        """Another trial is due. After the end of a recurrence it opens the next one, under a name of its own."""
        if last is None:
            return self
        known = replace(self, recurrence_id=last.recurrence_id or self.recurrence_id)
        if last.has_failed:
            is_out_of_memory = reason_code(last.outcome_reason) == OUT_OF_MEMORY
            failure = Failure(batch_size=last.batch_size, is_out_of_memory=is_out_of_memory)
            known = replace(known, failed=(*self.failed, failure))
        if last.should_retry or last.outcome in (Outcome.INTERRUPTED, Outcome.CANCELLED):
            return known
        count = self.count + 1
        name = None if self.given_id is None else f"{self.given_id}-{count}"
        return CurrentRecurrence(given_id=self.given_id, recurrence_id=name, count=count)


def first_recurrence(given_id: str | None) -> CurrentRecurrence:
    """The recurrence that a process begins with."""
    return CurrentRecurrence(given_id=given_id, recurrence_id=given_id)


def choose_alone(spec: JobSpec, best: int | None, failed: Sequence[Failure], *, why: str) -> tuple[int, str]:
    """The best batch size as last known, else the default one; after failures the nearest that has not failed.

    After an out-of-memory only smaller ones remain. Returns the batch size and the reason; it begins with ``why``, the
    reason why nobody is asked.
    """
    first, words = spec.default_batch_size, "the default one"
    if best is not None and best in spec.batch_sizes:
        first, words = best, "the best one known here"
    left = _left(spec.batch_sizes, failed) or spec.batch_sizes
    nearest = min(left, key=lambda size: (abs(size - first), size))
    if nearest != first:
        words = f"the nearest to {first} that has not failed"
    return nearest, f"{why}: {words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnd:
    """Whether a loop over trials goes on; if not, what people should read of that."""

    goes_on: bool
    notice: Notice | None = None


def check_ended(state: TrainingState) -> None:
    """Raise WrongOrder if another training cannot follow yet."""
    if state.has_ended:
        return
    if not state.has_started:
        raise WrongOrder(
            "the batch size of this trial was given already: the training comes next (on_train_begin, or `with trial:` "
            "inside the loop), or bso.close(), which calls the trial off"
        )
    raise WrongOrder(
        "a training is running, and has to end before the next batch size: leave its block (`with trial:`, or `with "
        "bso.relaunching():` around the flat methods); bso.close() ends one that was interrupted, in a notebook, say"
    )


def loop_after(state: TrainingState, *, interruptions: int) -> LoopEnd:
    """Whether another trial follows this one in its loop, of whose trials ``interruptions`` were interrupted.

    A script that catches what its trainings raise, and goes on, must not do so for ever. Raises WrongOrder if the
    training never began.
    """
    if not state.has_started:
        raise WrongOrder(
            "the loop went on without a training: put it inside `with trial:` (async: `async with trial:`)"
        )
    is_worn_out = interruptions >= state.spec.max_attempts
    if state.should_retry and not state.is_called_off and not is_worn_out:
        return LoopEnd(goes_on=True)
    return LoopEnd(goes_on=False, notice=_why_no_other_follows(state, interruptions if is_worn_out else 0))


def _left(sizes: Sequence[int], failed: Sequence[Failure]) -> list[int]:
    tried = {one.batch_size for one in failed}
    ceilings = [one.batch_size for one in failed if one.is_out_of_memory]
    return [size for size in sizes if size not in tried and all(size < ceiling for ceiling in ceilings)]


def _why_no_other_follows(state: TrainingState, interruptions: int) -> Notice | None:
    if interruptions and not state.is_called_off:
        trials = "trial" if interruptions == 1 else "trials"
        return _warning(
            "trials_interrupted",
            f"no other trial follows, and there is no model: {interruptions} {trials} of this loop ended with an "
            f"exception of the training, which the script caught, and max_attempts is {state.spec.max_attempts}; the "
            f"last was {state.outcome_reason}",
        )
    if state.is_called_off:
        return _warning("trials_called_off", f"{_what_is_left(state)}: {state.outcome_reason}")
    if state.outcome is not Outcome.CONVERGED:
        outcome = state.outcome.value if state.outcome else "running"
        return _warning(
            "recurrence_without_model",
            f"no attempt is left, and none reached the target; the last one, with batch size {state.batch_size}, "
            f"ended as {outcome}: {state.outcome_reason}",
        )
    return None


def _what_is_left(state: TrainingState) -> str:
    if state.outcome is Outcome.INTERRUPTED:
        return "no other trial follows, and there is no model"
    return (
        "no other trial follows: the model is as it was trained, but nothing was learnt about batch size "
        f"{state.batch_size}"
    )


def _warning(action: str, words: str) -> Notice:
    return Notice(level=logging.WARNING, action=action, words=words)
