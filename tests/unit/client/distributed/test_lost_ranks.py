"""Rank 0, whose optimizer replies while it loses the other ranks."""

import asyncio
from typing import Any

import pytest

from bso.domain.commands import FinishTrial, ReportEpoch
from bso.domain.replies import EpochJudged, Reply
from bso_client import Outcome, RankLost
from bso_client.delivery.outbox import Outbox
from bso_client.distributed.exchange import RankExchange
from bso_client.distributed.torch_ranks import TorchRanks
from bso_client.driver import Driver, Place
from bso_client.meter import Meter, PooledMeter
from bso_client.training.state import Consumption, Step
from tests.servers import PATIENCE_S
from tests.unit.client.doubles import ScriptedMonitor
from tests.unit.client.test_late_answers import FINISHED, STOP, SlowTransport, journal_of, nothing_earlier
from tests.unit.client.test_training_life import a_training

CONVERGED = EpochJudged(should_stop=True, reason="reached", cost=10.0, bound=None, outcome=Outcome.CONVERGED)


class LostRanks(TorchRanks):
    """Two ranks, seen from rank 0: the other one is lost after the evaluation, before rank 0 hands its replies on."""

    def __init__(self) -> None:
        self.rank, self.size, self.local_rank = 0, 2, 0
        self.timeout_s = PATIENCE_S
        self._lost = None

    def gather(self, value: Any, *, about: str = "gather") -> list[Any]:
        return [value, value]

    def broadcast(self, value: Any, *, about: str = "broadcast") -> Any:
        self._lost = RankLost("rank 1 is gone")
        raise self._lost

    def has_note(self, key: str) -> bool | None:
        return False


class LateRanks(LostRanks):
    """The other rank does not come to the evaluation."""

    def gather(self, value: Any, *, about: str = "gather") -> list[Any]:
        raise RankLost("not every rank came")


def rank_0(ranks: type[LostRanks] = LostRanks, *, ranks_in_all: int = 2) -> tuple[Driver, SlowTransport, Outbox]:
    transport = SlowTransport()
    outbox = Outbox(transport, journal_of, deliver_earlier=nothing_earlier)
    driver = Driver(
        Step(state=a_training()),
        meter=PooledMeter(Meter(ScriptedMonitor()), before=Consumption(), size=2),
        exchange=RankExchange(ranks()),
        place=Place(local_batch_size=32, data_parallel_size=ranks_in_all, report_timeout_s=PATIENCE_S),
        outbox=outbox,
        on_end=lambda _state: None,
    )
    return driver, transport, outbox


@pytest.mark.parametrize("reply", [STOP, CONVERGED], ids=["stopped", "converged"])
async def test_a_verdict_that_cannot_be_handed_on_is_how_the_trial_ends(reply: EpochJudged) -> None:
    driver, transport, outbox = rank_0()
    replies: list[Reply] = [reply, FINISHED]
    for each in replies:
        await transport.answers.put(each)

    with pytest.raises(RankLost) as lost:
        await driver.evaluated(driver.measured(0.1))
    assert not await driver.leave(lost.value)
    assert await outbox.drained(timeout_s=PATIENCE_S)
    assert driver.state.outcome is reply.outcome
    ends = [each.command.outcome for each in transport.came if isinstance(each.command, FinishTrial)]
    assert ends == ([reply.outcome] if reply is STOP else [])
    assert sum(isinstance(each.command, ReportEpoch) for each in transport.came) == 1


async def test_a_process_that_ends_while_its_trial_does_ends_it_once() -> None:
    driver, transport, outbox = rank_0()
    await transport.answers.put(FINISHED)
    await asyncio.gather(*(driver.finish(Outcome.INTERRUPTED, reason) for reason in ("left", "SIGTERM")))
    assert await outbox.drained(timeout_s=PATIENCE_S)
    assert [type(each.command) for each in transport.came] == [FinishTrial]


@pytest.mark.parametrize(("size", "is_uneven"), [(2, False), (3, True)])
async def test_a_rank_that_does_not_come_may_make_more_steps_where_shares_are_uneven(
    size: int, *, is_uneven: bool
) -> None:
    driver, _transport, _outbox = rank_0(LateRanks, ranks_in_all=size)
    with pytest.raises(RankLost, match="not every rank came") as lost:
        await driver.evaluated(driver.measured(0.1))
    assert ("uneven shares" in str(lost.value)) is is_uneven
    assert ("ProportionalSampler" in str(lost.value)) is is_uneven
