"""When letters that wait are kept on disk, and in which order."""

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bso.domain.commands import BeginTrial, Command, FinishTrial, ReportEpoch, Request
from bso.domain.replies import Reply
from bso.domain.trial import Outcome
from bso_client import Unreachable
from bso_client.delivery.journal import Destination, Journal, Kept
from bso_client.delivery.left_behind import contents
from bso_client.delivery.obstacle import AWAY
from bso_client.delivery.outbox import Outbox
from bso_client.training.state import Message, TrainingState
from tests.servers import PATIENCE_S
from tests.servers.waiting import eventually_async
from tests.unit.client.doubles import HARDWARE
from tests.unit.client.test_training_life import a_training, alone

BEGIN = BeginTrial(hardware=HARDWARE, batch_size=64)
REPORT = ReportEpoch(trial_number=0, trial_id="", epoch=1.0, time_s=1.0, energy_j=1.0, metric=0.5, is_journalled=True)
FINISH = FinishTrial(trial_number=0, trial_id="", outcome=Outcome.CONVERGED, is_journalled=True)


class Sender:
    """A training that the optimizer does not know yet."""

    state: TrainingState = alone().state

    def received(self, command: Command, reply: Reply) -> None: ...


class KnownSender(Sender):
    """A training that it has begun."""

    state = a_training()


class FullAtFirst(Journal):
    """On a disk that has no room for one letter, and then room again."""

    has_failed = False

    def keep(self, kept: Kept) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().keep(kept)


class Away:
    """Nobody answers."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        raise Unreachable("nobody answers")


class Silent(Away):
    """Takes every command, and answers none."""

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        return await asyncio.Future()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = FullAtFirst(tmp_path, Destination(address="amqp://broker", login="trainer"), "job")
    yield journal
    journal.close()


def kept_in(state_dir: Path) -> list[type[Command]]:
    """The commands that a journal holds, in its order."""
    return [type(letter.request.command) for found in contents(state_dir) for letter in found.letters]


async def nothing_earlier(job_id: str) -> None: ...


def posted(outbox: Outbox, *commands: Command) -> None:
    for command in commands:
        outbox.post(Message(command=command, late=command), Sender(), timeout_s=PATIENCE_S)


async def test_no_letter_is_kept_before_an_older_one_that_the_disk_had_no_room_for(
    tmp_path: Path, journal: Journal
) -> None:
    outbox = Outbox(Away(), lambda job_id: journal, deliver_earlier=nothing_earlier)
    outbox.expect_nobody(AWAY)
    posted(outbox, BEGIN, REPORT, FINISH)
    await eventually_async(lambda: len(kept_in(tmp_path)) == 3)
    assert kept_in(tmp_path) == [BeginTrial, ReportEpoch, FinishTrial]
    await outbox.close()


async def test_at_the_end_of_a_process_a_gap_is_better_than_nothing(
    tmp_path: Path, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(Away(), lambda job_id: journal, deliver_earlier=nothing_earlier)
    posted(outbox, BEGIN, REPORT, FINISH)
    await outbox.close()
    assert kept_in(tmp_path) == [ReportEpoch, FinishTrial]
    said = {getattr(record, "action", ""): record for record in caplog.records}
    assert said["reports_lost"].letters == 1  # type: ignore[attr-defined]
    assert "nor kept on disk (OSError: " in said["reports_lost"].getMessage()


async def test_letters_whose_replies_nobody_waits_for_are_kept_as_soon_as_a_report_would_be(tmp_path: Path) -> None:
    here = Destination(address="amqp://broker", login="trainer")
    outbox = Outbox(Silent(), lambda job_id: Journal(tmp_path, here, job_id), deliver_earlier=nothing_earlier)
    for command in (REPORT, FINISH):
        outbox.post(Message(command=command, late=command), KnownSender(), timeout_s=0.0)
    await eventually_async(lambda: kept_in(tmp_path) == [ReportEpoch, FinishTrial])
    assert outbox.is_away, "reports after these are not held up for an answer"
    await outbox.close()
