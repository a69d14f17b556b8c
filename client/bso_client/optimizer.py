"""The optimizer for training scripts: synchronous, over an event loop in a thread of its own."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self, SupportsFloat, TypeVar, Unpack

from bso.domain.trial import Outcome
from bso_client.background import LoopThread
from bso_client.distributed import Ranks
from bso_client.errors import CannotResume, TrainFailed
from bso_client.failures import is_out_of_memory
from bso_client.job_spec import JobSpec
from bso_client.lifecycle import CLOSE_TIMEOUT_S, Shell, watch
from bso_client.options import OptimizerOptions
from bso_client.session import Session
from bso_client.trial import Trial

T = TypeVar("T")

logger = logging.getLogger("bso")

_SHOWN_WITHIN_S = 2.0  # a notebook shows the plain text of an optimizer that takes longer


class BatchSizeOptimizer:
    """Gives a recurring training its batch size, and decides when it stops.

    Nothing is connected before the first use. Arguments beat the environment, which is read here, once:

    ``url``                 where the optimizer is: ``sqlite:///path``, ``amqp(s)://...`` or ``https://...`` (BSO_URL;
                            default: a SQLite file in the state directory, no server)
    ``state_dir``           where notes and that file are kept (BSO_STATE_DIR; default: the user's state directory)
    ``recurrence_id``       the occasion on which a model is due (BSO_RECURRENCE_ID, else the scheduler's run id)
    ``monitor``             measures energy: an EnergyMonitor, a ZeusMonitor, or any Monitor (default: an EnergyMonitor
                            wherever a meter is readable; BSO_ENERGY=assumed: none)
    ``constant_power``      watts to assume where no meter is readable (1)
    ``hardware``            what the training runs on, if that is not what is measured, or found to be visible
    ``samples_per_epoch``   for trainings that count samples: on_evaluate(metric, samples=...)
    ``learning_rate``       a LearningRate, recorded with each trial; scaled to its batch size: ``trial.learning_rate``
    ``unreachable_timeout`` seconds to wait for a batch size (60)
    ``on_unreachable``      "continue": after that, a job that is known here goes on alone; "raise": Unreachable
    ``on_conflict``         "new_version": another target or eta_knob starts a new version of the job; "raise"
    ``inherit``             whether a new version begins with what the version before knew; False: with nothing (True)
    ``like``                the job_id of another job: a new job, or a new version, begins with what that job knows
    ``uneven``              allow batch sizes that the ranks of a data-parallel training cannot divide equally (False);
                            each rank then loads with a ProportionalSampler, as TrainingLoader does
    ``data_parallel_group`` with tensor or pipeline parallelism: the ranks among which the batch is divided (all)
    ``rank_timeout``        seconds that ranks wait for each other before RankLost (60)
    ``transport``           another way to the optimizer than ``url``, which then names the optimizer that it leads to:
                            without that, no later process delivers what this one could not

    Times are in seconds, energies and costs in joules, powers in watts. Arguments raise InvalidSetting, InvalidUrl
    or InvalidSpec. Getting a batch size may raise Unreachable, Refused, SpecConflict, any Misconfigured, WrongOrder,
    CannotResume, and in data-parallel training DistributedNotReady, RankLost or RanksOutOfStep. Once training runs,
    the optimizer's absence raises nothing.
    """

    def __init__(self, spec: JobSpec | None = None, **options: Unpack[OptimizerOptions]) -> None:
        self._session = Session(spec, os.environ, **options)
        self._thread = LoopThread()
        self._watched = False
        self._is_looping = False

    @property
    def job_id(self) -> str | None:
        """The job's name; None before the first use if none was given."""
        return self._session.job_id

    def trials(self) -> Generator[Trial, None, None]:
        """Train until there is a model: each trial is one training with one batch size, inside ``with trial:``.

        Ends after a trial that converged, when no attempt is left, or when ``max_attempts`` of its trials have ended
        with an exception that the script caught.
        """
        interruptions = 0
        while True:
            trial = self._begin()
            self._is_looping = True
            try:
                yield trial
            finally:
                self._is_looping = False
                # A generator that outlives its loop is closed when the interpreter is: all has ended then (lifecycle).
                if not (self._session.is_copy or sys.is_finalizing()):
                    self._wait(self._session.end_unstarted())
            interruptions += trial.outcome is Outcome.INTERRUPTED
            if not self._session.another_follows(interruptions=interruptions):
                return

    def resumable_trials(self, state: Mapping[str, Any] | None) -> Generator[Trial, None, None]:
        """``trials()``, beginning with the trial of a checkpoint's ``state_dict()``, where there is one that can go on.

        ``trial.is_resumed`` says so: load the rest of the checkpoint then. A trial that has ended meanwhile, last
        night's for example, is not resumed: training begins anew, on all ranks. Of several ranks, rank 0 needs the
        state; others may pass None. Raises CannotResume where ``state`` is no state.
        """
        if state is not None:
            self._session.load_state_dict(state)
        try:
            yield from self.trials()
        except CannotResume as error:
            logger.warning("training begins anew: %s", error, extra={"action": "checkpoint_not_resumed"})
            yield from self.trials()

    def get_batch_size(self) -> int:
        """Begin a trial and return its batch size. Next: on_train_begin()."""
        return self._begin().batch_size

    def on_train_begin(self) -> None:
        """Begin to measure. Next: on_evaluate after each epoch, until training_finished."""
        Trial(self._session.current("on_train_begin()"), self._thread.run).__enter__()

    def on_evaluate(self, metric: SupportsFloat, *, epoch: float | None = None, samples: float | None = None) -> None:
        """Report an evaluation; as Trial.on_evaluate, but raises TrainFailed when the batch size has failed.

        Nothing after TrainFailed should run: exit with its ``exit_code``, so that ``bso recur`` launches again.
        """
        trial = Trial(self._session.current("on_evaluate()"), self._thread.run)
        trial.on_evaluate(metric, epoch=epoch, samples=samples)
        if trial.failure is not None:
            raise trial.failure

    @property
    def training_finished(self) -> bool:
        """Whether the training has reached its target (a failure raises TrainFailed instead)."""
        return self._session.current("training_finished").state.has_ended

    @property
    def trial(self) -> Trial | None:
        """The current or last trial."""
        driver = self._session.driver
        return None if driver is None else Trial(driver, self._thread.run)

    @property
    def is_looping(self) -> bool:
        """Whether a loop over trials() is at one of them: a failure is followed by the next one, not by an exit."""
        return self._is_looping

    @property
    def ranks(self) -> Ranks:
        """The processes that train together, to exchange values with them. Raises DistributedNotReady."""
        return self._session.ranks

    def paused(self) -> AbstractContextManager[None]:
        """Leave out of time and energy what happens inside ``with bso.paused():``, an upload for example."""
        return self._session.current("paused()").paused()

    @contextmanager
    def relaunching(self) -> Iterator[None]:
        """Exit the process as ``bso recur`` expects it: with 75 when another batch size is to be tried.

        For the flat methods: put the training inside. TrainFailed and a GPU out of memory become a SystemExit with
        a line on stderr; everything else ends the trial as interrupted, and goes its way.
        """
        try:
            yield
        except BaseException as error:
            failure = self._failure_of(error)
            if failure is None:
                self._left_by(error)
                raise
            print(failure, file=sys.stderr)  # noqa: T201  # the last words of a script
            raise SystemExit(failure.exit_code) from error

    def state_dict(self) -> dict[str, Any]:
        """The running trial as plain data, for a checkpoint. An interruption then leaves the trial to be resumed."""
        return Trial(self._session.current("state_dict()"), self._thread.run).state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the trial of a checkpoint: before get_batch_size() or trials(), which raise CannotResume."""
        self._session.load_state_dict(state)

    def close(self, *, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End what runs as interrupted, deliver what is left within ``timeout`` seconds, and disconnect.

        Done at the end of the process if it is not done here. The next use opens it again.
        """
        if not self._session.is_copy:
            Shell(self._session, self._thread).close(timeout_s=timeout, reason="the optimizer was closed")

    def _repr_html_(self) -> str | None:
        """The job as a notebook shows it; None, for the plain text, before the first trial and without an answer."""
        if self._session.is_copy or not self._session.is_open:
            return None
        job = self._wait(self._session.described(timeout_s=_SHOWN_WITHIN_S))
        if job is None:
            return None
        from bso_client.html import job_as_html  # a training in a script needs no pictures

        return job_as_html(job)

    def __enter__(self) -> Self:
        """For ``with BatchSizeOptimizer(...) as bso:``, which closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it; a training that an exception has left ends accordingly."""
        driver = self._session.driver
        if error is not None and driver is not None and not (self._session.is_copy or sys.is_finalizing()):
            self._wait(driver.leave(error))
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"_session": self._session, "_watched": False, "_is_looping": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._thread = LoopThread()

    def _begin(self) -> Trial:
        self._watch()
        return Trial(self._wait(self._session.begin()), self._thread.run)

    def _left_by(self, error: BaseException) -> None:
        """End the trial that an exception has left; one whose training had not begun is called off."""
        driver = self._session.driver
        if driver is None or self._session.is_copy or sys.is_finalizing():
            return
        if driver.state.has_started:
            self._wait(driver.leave(error))
        else:
            self._wait(self._session.end_unstarted())

    def _failure_of(self, error: BaseException) -> TrainFailed | None:
        driver = self._session.driver
        if isinstance(error, TrainFailed):
            return error
        if driver is None or not is_out_of_memory(error):
            return None
        self._wait(driver.leave(error))
        return driver.state.failure if driver.state.has_failed else None

    def _watch(self) -> None:
        if not self._watched and not self._session.is_copy:
            self._watched = True
            self._thread.start()
            shell = Shell(self._session, self._thread)
            watch(shell)
            weakref.finalize(self, shell.abandon).atexit = False

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._session.is_copy:  # the thread of the parent is not here: waiting for it would never end
            coroutine.close()
        self._session.check_process()
        return self._thread.run(coroutine)
