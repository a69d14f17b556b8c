"""What the synchronous and the asynchronous optimizer share: everything but the waiting."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from bso.domain.hardware import HardwareKind
from bso.domain.trial import Outcome
from bso_client.distributed import Alone, Ranks, ranks_for
from bso_client.energy.metering import read_metering_settings
from bso_client.errors import BsoError, InvalidSetting, NotInThisProcess, WrongOrder
from bso_client.instruments import Instruments, instruments_for
from bso_client.job_spec import JobSpec
from bso_client.notes import Notebook
from bso_client.options import OptimizerOptions, check_options, kind_of
from bso_client.registration import Registration
from bso_client.run import TrialRun
from bso_client.saved_state import SavedState, read_saved_state, saved_state_of
from bso_client.session import Options, Session
from bso_client.settings import read_settings
from bso_client.training import Training
from bso_client.transports import Transport, open_transport

if TYPE_CHECKING:
    from bso_client.distributed.together import Equipment, Together

logger = logging.getLogger("bso")

_announced: set[str] = set()


class OptimizerCore:
    """Arguments and environment, read once; the session, opened at its first use, in the process that made it."""

    def __init__(self, spec: JobSpec | None, environ: Mapping[str, str], **options: Unpack[OptimizerOptions]) -> None:
        check_options(options)
        if not isinstance(spec, JobSpec):
            raise InvalidSetting(f"expected a bso_client.JobSpec as the first argument, got {kind_of(spec)}")
        self.spec = spec
        self.settings = read_settings(
            environ,
            url=options.get("url"),
            state_dir=options.get("state_dir"),
            job_id=spec.job_id,
            recurrence_id=options.get("recurrence_id"),
        )
        self.session: Session | None = None
        self._options = options
        self._metering = read_metering_settings(environ)
        self._instruments: Instruments | None = None
        self._together: Together | None = None
        self._pid = os.getpid()
        self._state_to_resume: SavedState | None = None

    @property
    def is_copy(self) -> bool:
        """Whether this is another process than the one that made the optimizer."""
        return self._pid != os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return self.session is not None or self._together is not None

    @property
    def job_id(self) -> str | None:
        """The job's name; None before the registration if none was given."""
        if self.session is None and self._together is not None and self._together.run is not None:
            return self._together.run.job_id
        return self.session.job_id if self.session is not None else self.settings.job_id

    @property
    def run(self) -> Training | None:
        """The current or last training."""
        if self._together is not None:
            return self._together.run
        return self.session.run if self.session is not None else None

    @property
    def ranks(self) -> Ranks:
        """The processes that train together. Raises DistributedNotReady."""
        self.check_process()
        together = self._find_together()
        return Alone() if together is None else together.ranks

    async def begin(self) -> Training:
        """Begin the next trial, or go on with the one of a loaded state.

        Errors say it all themselves: what led to them is logged for debugging, not shown to whoever trains.
        """
        try:
            return await self._begun()
        except BsoError as error:
            logger.debug("no trial could be begun", exc_info=True, extra={"action": "begin_failed"})
            raise error.with_traceback(None) from None

    async def _begun(self) -> Training:
        self.check_process()
        together = self._find_together()
        state, self._state_to_resume = self._state_to_resume, None
        if together is None:
            return await self._begin_on(self._open_session(), state)
        return await together.begin(
            lambda: self._equipment(together, state),
            lambda hardware: self._begin_on(self._open_session(hardware), state),
        )

    async def end_unstarted(self) -> None:
        """Call off a trial whose training never began."""
        if self.is_copy:
            return
        if self._together is not None:
            await self._together.end_unstarted()
        elif self.session is not None:
            await self.session.end_unstarted()

    async def close(self, *, timeout_s: float, reason: str, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End what runs, deliver what is left within the time, and disconnect. A later use is for the same job."""
        if self.is_copy:
            return
        self.settings = replace(self.settings, job_id=self.job_id)
        together, self._together = self._together, None
        session, self.session = self.session, None
        instruments, self._instruments = self._instruments, None
        if together is not None:
            await together.close(timeout_s=timeout_s, reason=reason, outcome=outcome)
        if session is not None:
            await session.close(timeout_s=timeout_s, reason=reason, outcome=outcome)
        if instruments is not None:
            instruments.close()

    def current(self, method: str) -> Training:
        """The training that a flat method is about. Raises WrongOrder, NotInThisProcess."""
        self.check_process()
        if self.run is None:
            raise WrongOrder(f"{method} came before get_batch_size(): that comes first")
        return self.run

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out of time and energy what happens inside."""
        with self.current("paused()").paused():
            yield

    def state_dict(self) -> dict[str, Any]:
        """The running trial for a checkpoint. From now on an interruption leaves it to be resumed."""
        run = self.current("state_dict()")
        run.is_resumable = True
        return saved_state_of(self.job_id or "", run.progress, run.consumed_now()).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with this trial at the next get_batch_size."""
        self.check_process()
        if self.run is not None and not self.run.progress.has_ended:
            raise WrongOrder("load_state_dict came after get_batch_size(): load the state first")
        self._state_to_resume = read_saved_state(state)

    async def _begin_on(self, session: Session, state: SavedState | None) -> TrialRun:
        return await session.begin() if state is None else await session.resume(state)

    def _find_together(self) -> Together | None:
        """The ranks that train together, if there are several now; new ones after another init_process_group."""
        if self._together is not None and self._together.ranks.is_current:
            return self._together
        ranks = ranks_for(self.settings, timeout_s=self._options.get("rank_timeout", 60.0))
        if ranks is None:
            return None
        from bso_client.distributed.together import Together

        if self._together is not None:
            self._instruments = None
        self._together = Together(
            ranks, samples_per_epoch=self._options.get("samples_per_epoch"), open_transport=self._open_transport
        )
        return self._together

    def _equipment(self, together: Together, state: SavedState | None) -> Equipment:
        from bso_client.distributed.equipment import equipment_for

        if self._instruments is None:
            self._instruments = instruments_for(self._options, self._metering, speaks=together.ranks.rank == 0)
        return equipment_for(
            self._instruments,
            together.ranks,
            spec=self.spec.resolve(),
            options=self._options,
            environ=self._metering.devices,
            state=state,
        )

    def _open_session(self, hardware: HardwareKind | None = None) -> Session:
        if self._instruments is None:
            self._instruments = instruments_for(self._options, self._metering, speaks=True)
        hardware = hardware or self._instruments.hardware
        if self.session is None:
            self.session = self._new_session(self._instruments)
        self.session.hardware = hardware
        return self.session

    def _new_session(self, instruments: Instruments) -> Session:
        options, settings = self._options, self.settings
        self._announce_place()
        registration = Registration(
            self.spec,
            job_id=settings.job_id,
            notebook=Notebook(settings.resolved_state_dir),
            on_conflict=options.get("on_conflict", "new_version"),
            inherit=options.get("inherit", True),
            like=options.get("like"),
        )
        return Session(
            registration=registration,
            recurrence_id=settings.recurrence_id,
            transport=self._open_transport(),
            hardware=instruments.hardware,
            monitor=instruments.monitor,
            options=Options(
                unreachable_timeout_s=options.get("unreachable_timeout", 60.0),
                on_unreachable=options.get("on_unreachable", "continue"),
                samples_per_epoch=options.get("samples_per_epoch"),
                learning_rate=options.get("learning_rate"),
            ),
        )

    def _open_transport(self) -> Transport:
        given = self._options.get("transport")
        return given or open_transport(self.settings.resolved_url, trial_log=self.settings.trial_log)

    def check_process(self) -> None:
        """Raise NotInThisProcess in any process but the one that made the optimizer."""
        if self.is_copy:
            raise NotInThisProcess(
                "this optimizer belongs to the process that made it; in a forked or spawned process it is a copy that "
                "stays silent"
            )

    def _announce_place(self) -> None:
        words = self.settings.announced_place
        if words is not None and self._options.get("transport") is None:
            _announce(words)

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process: it knows what it was, and stays silent."""
        silent = ("data_parallel_group", "monitor", "transport")
        return self.__dict__ | {
            "session": None,
            "_options": {name: value for name, value in self._options.items() if name not in silent},
            "_instruments": None,
            "_together": None,
            "_state_to_resume": None,
            "_pid": -1,
        }


def _announce(words: str) -> None:
    if words in _announced:
        return
    _announced.add(words)
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", words, extra={"action": "place_announced"})
    else:
        print(words, file=sys.stderr)  # noqa: T201  # a user without logging has to know where files appear
