"""Runs recurrences: waits until one is due, launches until it has its model, remembers each step before it is taken."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import BinaryIO, Protocol

from bso.cli.recurring.folder import RunFolder
from bso.cli.recurring.launching import Ended, Launcher, Output, signals
from bso.cli.recurring.narration import Narration
from bso.cli.recurring.processes import still_running
from bso.cli.recurring.records import Launch, Recurrence, Run
from bso.cli.recurring.schedule import Due, Schedule, next_due
from bso_client import RELAUNCH
from bso_client.energy.meters import ENERGY_ASSUMED, NOTICE_GIVEN

WAKE_UP_S = 30.0
"""The clock is looked at so often while nothing is due: it may be set, and the machine may sleep."""


class Step(Enum):
    """What follows the end of a launch."""

    AGAIN = "again"  # another launch of the same recurrence
    OVER = "over"  # the recurrence is closed, the next one may come
    STOP = "stop"  # the driver stops and leaves the recurrence open, for the next driver to go on with


class Onlooker(Protocol):
    """Who gets notice of what the driver does."""

    def waits(self, due: Due, *, number: int) -> None:
        """A recurrence will be due."""
        ...

    def begins(self, recurrence: Recurrence, *, is_resumed: bool) -> None:
        """A recurrence begins, or goes on."""
        ...

    def finds(self, recurrence: Recurrence, launch: Launch, *, is_running: bool) -> None:
        """An earlier driver's launch was found, still running or not."""
        ...

    def fails(self, ended: Ended, launch: Launch) -> None:
        """A launch ended badly."""
        ...

    def ends(self, recurrence: Recurrence, done: list[Recurrence]) -> None:
        """A recurrence has ended, or the driver stops in it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a run is driven.

    ``captures``: programs print into the run's folder, and from there to ``shown``. ``launches`` is the most launches
    of one recurrence, ``keeps_going`` whether a failed one is left behind.
    """

    environment: Mapping[str, str]
    launches: int
    keeps_going: bool
    catches_up: bool
    captures: bool
    shown: BinaryIO | None = None


@dataclass(slots=True, kw_only=True)
class Driver:
    """Drives one run in its folder, from where it stands. ``clock`` gives the time, ``new_id`` names recurrences."""

    run: Run
    folder: RunFolder
    launcher: Launcher
    manner: Manner
    onlooker: Onlooker
    clock: Callable[[], datetime]
    new_id: Callable[[], str]
    schedule: Schedule | None = None
    done: list[Recurrence] = field(default_factory=list)

    async def drive(self) -> int:
        """Run what is left of the run. Returns the first failed command's exit code, else 0."""
        self.done = self.folder.recurrences()
        code = 0
        while (recurrence := await self._next()) is not None and not isinstance(recurrence, signal.Signals):
            recurrence, ended = await self._recur(recurrence)
            self.done = [*(one for one in self.done if one.number != recurrence.number), recurrence]
            self.onlooker.ends(recurrence, self.done)
            code = code or ended.code or 0
            if recurrence.is_open or ended.stopped_by is not None:
                return code or 128 + (ended.stopped_by or 0)
        return code or (128 + recurrence if recurrence is not None else 0)

    async def _next(self) -> Recurrence | signal.Signals | None:
        """The recurrence to work on once it is due; None: all are done; a signal: somebody wants us to stop."""
        last = self.done[-1] if self.done else None
        if last is not None and last.is_open:
            self.onlooker.begins(last, is_resumed=True)
            return last
        number = 1 if last is None else last.number + 1
        if self.run.count is not None and number > self.run.count:
            return None
        due_at = None
        if self.schedule is not None:
            due = next_due(
                self.schedule,
                last=last.due_at if last is not None else None,
                now=self.clock(),
                catches_up=self.manner.catches_up,
            )
            if (stopped_by := await self._wait_until(due, number)) is not None:
                return stopped_by
            due_at = due.at
        return self._open(number, due_at)

    def _open(self, number: int, due_at: datetime | None) -> Recurrence:
        opened = Recurrence(number=number, recurrence_id=self.new_id(), began_at=self.clock(), due_at=due_at)
        self.folder.save(opened)
        self.onlooker.begins(opened, is_resumed=False)
        return opened

    async def _wait_until(self, due: Due, number: int) -> signal.Signals | None:
        """Sleep until the moment; returns the signal that ended the wait, if one did."""
        with signals() as arrived:
            if due.missed or due.at > self.clock():
                self.onlooker.waits(due, number=number)
            while (left_s := (due.at - self.clock()).total_seconds()) > 0:
                with contextlib.suppress(TimeoutError):
                    return await asyncio.wait_for(arrived.get(), min(left_s, WAKE_UP_S))
        return None

    async def _recur(self, recurrence: Recurrence) -> tuple[Recurrence, Ended]:
        """Work on a recurrence until it is over, or until the driver has to stop in it: then it stays open."""
        narration = Narration(self.folder.trial_log(recurrence))
        narration.listen()
        launches = 0
        while True:
            if recurrence.launches and recurrence.launches[-1].ended_at is None:
                recurrence, ended = await self._adopt(recurrence, narration)
            else:
                recurrence, ended = await self._launch(recurrence, narration)
                launches += 1
            step = self._step(recurrence := replace(recurrence, trials=narration.trials), ended, launches)
            if step is Step.OVER:
                recurrence = replace(recurrence, ended_at=self.clock())
                if self.manner.captures and self.folder.holds_more(recurrence):
                    await self.launcher.give_up(narration)
            self.folder.save(recurrence)
            if step is not Step.AGAIN:
                return recurrence, ended

    def _step(self, recurrence: Recurrence, ended: Ended, launches: int) -> Step:
        """What follows an end."""
        if recurrence.has_model and not ended.code:
            return Step.OVER
        if ended.stopped_by is not None:
            return Step.STOP
        if ended.code is None or (launches < self.manner.launches and _asks_for_another(ended, recurrence)):
            return Step.AGAIN
        return Step.OVER if ended.code == 0 or self.manner.keeps_going else Step.STOP

    async def _launch(self, recurrence: Recurrence, narration: Narration) -> tuple[Recurrence, Ended]:
        number = len(recurrence.launches) + 1
        launch = Launch(number=number, began_at=self.clock(), seed=self._seed(recurrence), log=self._log(number))
        recurrence = recurrence.launched(launch)
        self.folder.sign_in(recurrence).unlink(missing_ok=True)
        self.folder.save(recurrence)
        ended = await self.launcher.run(
            self.run.command, self._environment(recurrence, launch), narration, self._output(recurrence, launch)
        )
        if ended.code:
            self.onlooker.fails(ended, launch)
        return self._ended(recurrence, ended), ended

    async def _adopt(self, recurrence: Recurrence, narration: Narration) -> tuple[Recurrence, Ended]:
        """See the launch to its end that a driver which is gone has left."""
        launch = recurrence.launches[-1]
        orphan = still_running(self.folder.sign_in(recurrence))
        self.onlooker.finds(recurrence, launch, is_running=orphan is not None)
        ended = await self.launcher.adopt(orphan, narration, self._output(recurrence, launch))
        return self._ended(recurrence, ended), ended

    def _ended(self, recurrence: Recurrence, ended: Ended) -> Recurrence:
        stopped_by = ended.stopped_by.name if ended.stopped_by is not None else None
        return recurrence.last_ended(at=self.clock(), exit_code=ended.code, stopped_by=stopped_by)

    def _environment(self, recurrence: Recurrence, launch: Launch) -> Mapping[str, str]:
        environment = {
            "BSO_RECURRENCE_ID": recurrence.recurrence_id,
            "BSO_RECURRENCE_NUMBER": str(recurrence.number),
            "BSO_LAUNCH_NUMBER": str(launch.number),
        }
        if self.run.job_id is not None:
            environment["BSO_JOB_ID"] = self.run.job_id
        if launch.seed is not None:
            environment["BSO_SEED"] = str(launch.seed)
        if any(trial.is_energy_assumed for one in (*self.done, recurrence) for trial in one.trials):
            environment[NOTICE_GIVEN] = ENERGY_ASSUMED
        if self.manner.captures:
            environment["BSO_RECURRENCE_DIR"] = str(self.folder.of(recurrence).absolute())
        return {**self.manner.environment, **environment}

    def _seed(self, recurrence: Recurrence) -> int | None:
        if self.run.seed is None:
            return None
        before = sum(len(one.launches) for one in self.done if one.number < recurrence.number)
        return self.run.seed + before + len(recurrence.launches)

    def _log(self, number: int) -> str | None:
        return f"launch-{number}.log" if self.manner.captures else None

    def _output(self, recurrence: Recurrence, launch: Launch) -> Output | None:
        if launch.log is None:
            return None
        log = self.folder.of(recurrence) / launch.log
        return Output(
            log=log,
            sign_in=self.folder.sign_in(recurrence),
            shown=self.manner.shown,
            may_resume=lambda: self.folder.holds_more(recurrence),
        )


def _asks_for_another(ended: Ended, recurrence: Recurrence) -> bool:
    """Whether the training wants to be launched again with another batch size.

    It says so by exit code 75. A launcher in between, such as torchrun, makes that 1; then the last trial tells.
    """
    if ended.code == RELAUNCH:
        return True
    return bool(ended.code) and bool(recurrence.trials) and recurrence.trials[-1].asks_for_another
