"""A session: the trainings of one optimizer in one process, from its arguments to its last words.

It is opened at its first use, in the process that made the optimizer. Every rank of a training has one; that of rank 0
alone is in contact with the optimizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

from bso.domain.replies import JobDescription
from bso.domain.trial import Outcome
from bso_client.contact import Contact, Journals, Waiting
from bso_client.delivery.journal import destination_of, unnamed_destination
from bso_client.delivery.logged import log_checkpoint, logged
from bso_client.delivery.outbox import beginning_id
from bso_client.distributed import Ranks
from bso_client.distributed.devices import devices_of, is_counted_elsewhere, machine_name
from bso_client.distributed.exchange import RankExchange
from bso_client.distributed.group import Group, Party, ranks_for
from bso_client.distributed.leader import Leader, this_process
from bso_client.distributed.membership import Equipment, Member
from bso_client.distributed.shares import Share
from bso_client.driver import Driver, Place, say
from bso_client.energy.meters import read_metering_settings
from bso_client.errors import BsoError, InvalidSetting, NotInThisProcess, RankLost, WrongOrder
from bso_client.failures import described
from bso_client.instruments import Instruments, instruments_for
from bso_client.job_spec import JobSpec
from bso_client.meter import Meter, PooledMeter
from bso_client.notes import Notebook
from bso_client.options import OptimizerOptions, check_options, kind_of
from bso_client.prober import Prober
from bso_client.registration import Registration
from bso_client.settings import read_settings
from bso_client.training.checkpoint import read_checkpoint
from bso_client.training.recurrence import check_ended, loop_after
from bso_client.training.state import Consumption, Step, TrainingState
from bso_client.training.transitions import end_of_unstarted
from bso_client.transports import Transport, open_transport

logger = logging.getLogger("bso")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beginning:
    """The beginning of a trial, as rank 0 hands it on to all ranks. ``before``: consumed before this process began."""

    step: Step
    before: Consumption
    leader: Leader


class Session:
    """Arguments and environment, read once; and at most one training at a time, which ``driver`` is."""

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
        self.driver: Driver | None = None
        self._options = options
        self._metering = read_metering_settings(environ)
        self._instruments: Instruments | None = None
        self._group: Group | None = None
        self._contact: Contact | None = None
        self._saved: TrainingState | None = None
        address = self.settings.resolved_url if options.get("transport") is None else options.get("url")
        self._destination = destination_of(address) if address else unnamed_destination()
        self._pid = os.getpid()

    @property
    def is_copy(self) -> bool:
        """Whether this is another process than the one that made the optimizer."""
        return self._pid != os.getpid()

    @property
    def is_open(self) -> bool:
        """Whether there is anything to close."""
        return self._contact is not None or self._group is not None

    @property
    def job_id(self) -> str | None:
        """The job's name; None before the registration if none was given."""
        if self._contact is not None:
            return self._contact.job_id
        return self.settings.job_id if self.driver is None else self.driver.state.job_id

    @property
    def ranks(self) -> Ranks:
        """The processes that train together. Raises DistributedNotReady."""
        self.check_process()
        return self._find_group().ranks

    async def begin(self) -> Driver:
        """Begin the next trial, or go on with the one of a loaded state.

        Errors say it all themselves: what led to them is logged for debugging, not shown to people who train.
        """
        try:
            return await self._begun()
        except BsoError as error:
            logger.debug("no trial could be begun", exc_info=True, extra={"action": "begin_failed"})
            raise error.with_traceback(None) from None

    async def described(self, *, timeout_s: float) -> JobDescription | None:
        """The job as the optimizer knows it; None where it is not open here, or nobody answers in time."""
        return None if self._contact is None else await self._contact.describe(timeout_s=timeout_s)

    async def end_unstarted(self) -> None:
        """Call off a trial whose training never began. The ranks need not meet."""
        if not self.is_copy and self.driver is not None and not self.driver.state.has_started:
            self.driver.has_left = True
            await self.driver.finish(*end_of_unstarted(self.driver.state))

    async def close(self, *, timeout_s: float, reason: str, outcome: Outcome = Outcome.INTERRUPTED) -> None:
        """End what runs, deliver what is left within the time, and disconnect. A later use is for the same job.

        Cancelled, it delivers nothing more; what was to be delivered is kept.
        """
        if self.is_copy:
            return
        self.settings = replace(self.settings, job_id=self.job_id)
        contact, self._contact = self._contact, None
        group, self._group = self._group, None
        driver, self.driver = self.driver, None
        instruments, self._instruments = self._instruments, None
        deadline = asyncio.get_running_loop().time() + timeout_s
        with contextlib.ExitStack() as at_end:
            for held in (instruments, group):  # the group ends first
                if held is not None:
                    at_end.callback(held.close)
            if contact is not None:
                at_end.enter_context(contact.closing(timeout_s=timeout_s))
            try:
                if driver is not None:
                    if not driver.state.has_started and outcome is Outcome.INTERRUPTED:
                        outcome, reason = end_of_unstarted(driver.state, reason)
                    await driver.finish(outcome, reason, timeout_s=timeout_s)
            except asyncio.CancelledError:
                deadline = 0.0
                raise
            finally:
                if contact is not None:
                    await contact.close(timeout_s=max(0.0, deadline - asyncio.get_running_loop().time()))

    def current(self, method: str) -> Driver:
        """The training that a flat method is about. Raises WrongOrder, NotInThisProcess."""
        self.check_process()
        if self.driver is None:
            raise WrongOrder(f"{method} came before get_batch_size(): that comes first")
        return self.driver

    def another_follows(self, *, interruptions: int) -> bool:
        """Whether the loop goes on after its current training, so many of whose trials were interrupted.

        Raises WrongOrder if the training never began.
        """
        driver = self.current("trials()")
        end = loop_after(driver.state, interruptions=interruptions)
        if end.notice is not None and driver.ranks.rank == 0:  # the others know the same
            say(end.notice)
        return end.goes_on

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with this trial at the next get_batch_size. Raises WrongOrder, CannotResume."""
        self.check_process()
        if self.driver is not None and not self.driver.state.has_ended:
            raise WrongOrder("load_state_dict came after get_batch_size(): load the state first")
        self._saved = read_checkpoint(state)

    def check_process(self) -> None:
        """Raise NotInThisProcess in any process but the one that made the optimizer."""
        if self.is_copy:
            raise NotInThisProcess(
                "this optimizer belongs to the process that made it; in a forked or spawned process it is a copy that "
                "stays silent"
            )

    async def _begun(self) -> Driver:
        self.check_process()
        group = self._find_group()
        saved, self._saved = self._saved, None
        party = await group.join(lambda: self._equipment(group, saved))
        if self.driver is not None:
            self.driver.acknowledge()
        led: list[Step] = []

        async def make() -> _Beginning:
            contact = self._opened_contact()
            led.append(await (contact.begin(party.hardware) if saved is None else contact.resume(saved)))
            before = Consumption() if saved is None else saved.consumed
            return _Beginning(step=led[0], before=before, leader=this_process())

        try:
            beginning = await group.lead(make)
            local = party.share.of(beginning.step.state.batch_size)
        except BsoError as error:
            if led:
                outcome = Outcome.INTERRUPTED if isinstance(error, RankLost) else Outcome.CANCELLED
                driver = self._driver(led[0], party, group, before=Consumption(), local_batch_size=0)
                await driver.finish(outcome, described(error))
            raise
        group.watch(beginning.leader)
        self.driver = self._driver(beginning.step, party, group, before=beginning.before, local_batch_size=local)
        if self._contact is not None:
            self._contact.follow(self.driver)
        return self.driver

    def _driver(self, step: Step, party: Party, group: Group, *, before: Consumption, local_batch_size: int) -> Driver:
        contact = self._contact
        return Driver(
            step,
            meter=PooledMeter(Meter(party.monitor), before=before, size=group.ranks.size),
            exchange=group.exchange,
            place=Place(
                local_batch_size=local_batch_size,
                data_parallel_size=party.share.size,
                samples_per_epoch=self._options.get("samples_per_epoch"),
            ),
            outbox=None if contact is None else contact.outbox,
            on_end=(lambda _state: None) if contact is None else contact.ended,
            on_checkpoint=lambda state: log_checkpoint(self.settings.trial_log, state, beginning_id(state.key)),
            on_orphaned=group.speak_for_rank_0,
            prober=Prober(party.monitor, share_of=party.share.of) if self.settings.probes else None,
        )

    def _find_group(self) -> Group:
        """The ranks that train together now; new ones after another init_process_group. Raises DistributedNotReady."""
        known = self._group
        if known is not None and not known.exchange.is_alone and known.exchange.is_current:
            return known
        several = ranks_for(self.settings, timeout_s=self._options.get("rank_timeout", 60.0))
        if known is not None and several is None and known.exchange.is_alone:
            return known
        if known is not None:
            self._instruments = None
        self._group = Group(RankExchange(several), self._open_transport, self._journals.of)
        return self._group

    def _equipment(self, group: Group, saved: TrainingState | None) -> Equipment:
        """What this rank brings. Raises WrongOrder while another training runs, InvalidSetting, InvalidSpec."""
        if self.driver is not None:
            check_ended(self.driver.state)
        if self._instruments is None:
            self._instruments = instruments_for(self._options, self._metering, speaks=group.ranks.rank == 0)
        own, options = self._instruments, self._options
        if group.exchange.is_alone:
            member = Member(hardware=own.hardware, share_size=1)
            return Equipment(member=member, share=Share(), monitor=own.monitor, assumed=own.assumed)
        from bso_client.distributed.torch_ranks import share_of  # a training of one process does not need it

        share = share_of(options.get("data_parallel_group"), group.ranks, is_uneven=options.get("uneven", False))
        share.check(self.spec.resolve().batch_sizes)
        member = Member(
            hardware=own.hardware,
            is_given=own.is_hardware_given,
            devices=devices_of(own.monitor, self._metering.devices, machine=machine_name()),
            is_counted_elsewhere=is_counted_elsewhere(own.monitor),
            share_size=share.size,
            resumes=None if saved is None else f"trial {saved.trial_number} of job {saved.job_id}",
        )
        return Equipment(member=member, share=share, monitor=own.monitor, assumed=own.assumed)

    def _opened_contact(self) -> Contact:
        if self._contact is None:
            options, settings = self._options, self.settings
            if options.get("transport") is None:
                settings.announce_place()
            self._contact = Contact(
                registration=Registration(
                    self.spec,
                    job_id=settings.job_id,
                    notebook=Notebook(settings.resolved_state_dir),
                    on_conflict=options.get("on_conflict", "new_version"),
                    inherit=options.get("inherit", True),
                    like=options.get("like"),
                ),
                recurrence_id=settings.recurrence_id,
                transport=self._open_transport(),
                waiting=Waiting(
                    unreachable_timeout_s=options.get("unreachable_timeout", 60.0),
                    on_unreachable=options.get("on_unreachable", "continue"),
                ),
                learning_rate=options.get("learning_rate"),
                journals=self._journals,
            )
        return self._contact

    @property
    def _journals(self) -> Journals:
        return Journals(state_dir=self.settings.resolved_state_dir, destination=self._destination)

    def _open_transport(self) -> Transport:
        given = self._options.get("transport")
        return given or logged(open_transport(self.settings.resolved_url), self.settings.trial_log)

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process: it knows what it was, and stays silent."""
        silent = ("data_parallel_group", "monitor", "transport")
        return self.__dict__ | {
            "driver": None,
            "_options": {name: value for name, value in self._options.items() if name not in silent},
            "_instruments": None,
            "_group": None,
            "_contact": None,
            "_saved": None,
            "_pid": -1,
        }
