"""Everything that the client raises on purpose. Nothing but TrainFailed is raised while a training runs."""

from __future__ import annotations

from typing import ClassVar

from bso.domain.errors import BsoError, Misconfigured, Rejected, Retryable, WrongSetting
from bso.domain.job_spec import InvalidSpec
from bso.domain.replies import Problem
from bso.domain.trial import Outcome

RELAUNCH = 75
"""The exit code that asks ``bso recur`` to launch the training again (EX_TEMPFAIL of sysexits.h)."""

__all__ = [
    "RELAUNCH",
    "BsoError",
    "CannotResume",
    "DistributedNotReady",
    "InvalidReport",
    "InvalidSetting",
    "InvalidSpec",
    "InvalidUrl",
    "Misconfigured",
    "NotInThisProcess",
    "RankLost",
    "RanksOutOfStep",
    "Refused",
    "Rejected",
    "Retryable",
    "SpecConflict",
    "TrainFailed",
    "Unreachable",
    "WrongOrder",
]


class Unreachable(Retryable):
    """The optimizer does not answer. Whether the command was carried out is unknown: repeat it as it was."""


class Refused(Rejected):
    """The optimizer refused a command; ``problem`` is its whole answer."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        unsaid = {name: text for name, text in problem.fields.items() if f"{name} {text}" not in problem.detail}
        fields = "".join(f"; {name} {text}" for name, text in unsaid.items())
        super().__init__(f"{problem.title}: {problem.detail}{fields}")


class SpecConflict(Refused):
    """The job is registered with another identity, and ``on_conflict="raise"`` was asked for."""


class InvalidUrl(WrongSetting):
    """The address of the optimizer is not one: expected sqlite:///..., amqp(s)://... or https://..."""


class InvalidSetting(WrongSetting):
    """An argument, or the environment variable behind it, is not acceptable."""


class WrongOrder(Rejected):
    """A method was called before another one that has to come first; the message names it."""


class InvalidReport(Rejected, ValueError):
    """on_evaluate was given something that is no evaluation."""


class NotInThisProcess(Rejected):
    """The optimizer belongs to the process that made it; a forked or spawned one has only a copy that stays silent."""


class DistributedNotReady(Misconfigured):
    """Several processes train together and it is not clear which of them may talk to the optimizer."""


class RankLost(BsoError):
    """A process of a distributed training has ended, or did not come to an exchange within ``rank_timeout``."""


class RanksOutOfStep(Rejected):
    """The processes of a distributed training called different methods, or in different orders; it says which."""


class CannotResume(Rejected):
    """The trial of a saved state can no longer be resumed: begin the training anew, without load_state_dict."""


class TrainFailed(BsoError):
    """This batch size failed: it is too costly, does not converge, or does not fit. Nothing after it should run.

    ``batch_size`` is in samples. ``should_retry``: another one is to be tried for the same model. ``exit_code`` asks
    ``bso recur`` for another launch.
    """

    FAILED: ClassVar[int] = 1

    def __init__(
        self, *, batch_size: int, trial_number: int | None, outcome: Outcome, reason: str, should_retry: bool
    ) -> None:
        self.batch_size = batch_size
        self.trial_number = trial_number
        self.outcome = outcome
        self.reason = reason
        self.should_retry = should_retry
        what_next = "launch the training again, it gets another batch size" if should_retry else "no attempt is left"
        super().__init__(f"batch size {batch_size} failed ({outcome.value}): {reason}; {what_next}")

    @property
    def exit_code(self) -> int:
        """What the process should exit with: 75 asks to be launched again, 1 gives up."""
        return RELAUNCH if self.should_retry else self.FAILED
