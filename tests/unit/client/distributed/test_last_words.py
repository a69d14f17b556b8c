"""What a survivor reports of a trial whose rank 0 has died: at once, or later from the journal."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bso.domain.commands import BeginTrial, Command, FinishTrial, RegisterJob, Request
from bso.domain.replies import Reply, TrialBegun
from bso.domain.trial import Outcome
from bso_client.delivery.flush import flush
from bso_client.delivery.journal import Destination, Journal
from bso_client.delivery.left_behind import contents
from bso_client.delivery.outbox import beginning_id, new_command_id
from bso_client.distributed.leader import LastWords, Leader, say_for
from bso_client.training.state import Consumption, TrainingState
from tests.servers import PATIENCE_S
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, job_spec

RANK_0 = Leader(pid=1, processes="machine")


@pytest.fixture
def optimizer() -> ReachableOptimizer:
    return ReachableOptimizer()


@pytest.fixture
def journal_of(tmp_path: Path) -> Callable[[str], Journal]:
    return lambda job_id: Journal(tmp_path, Destination(address="amqp://broker", login="trainer"), job_id)


async def asked(optimizer: ReachableOptimizer, command: Command) -> Reply:
    request = Request(command_id=new_command_id(), job_id="job", command=command)
    return await optimizer.call(request, timeout_s=PATIENCE_S)


async def words_of(optimizer: ReachableOptimizer) -> LastWords:
    await asked(optimizer, RegisterJob(spec=job_spec().requested))
    begun = await asked(optimizer, BeginTrial(hardware=HARDWARE))
    assert isinstance(begun, TrialBegun)
    state = TrainingState(
        job_id="job",
        key="key",
        batch_size=begun.batch_size,
        reason="",
        spec=job_spec().resolve(),
        hardware=HARDWARE,
        trial_number=begun.trial_number,
        trial_id=begun.trial_id,
        outcome=Outcome.INTERRUPTED,
        outcome_reason="the ranks do not meet",
    )
    return LastWords(state=state, consumed=Consumption(time_s=3.0, energy_j=5.0))


async def test_a_reachable_optimizer_learns_of_it_at_once(
    optimizer: ReachableOptimizer, journal_of: Callable[[str], Journal], tmp_path: Path
) -> None:
    await say_for(RANK_0, await words_of(optimizer), lambda: optimizer, journal_of)
    [trial] = await optimizer.store.trials("job")
    assert (trial.outcome, trial.time_s) == (Outcome.INTERRUPTED, 3.0)
    assert contents(tmp_path) == []


async def test_it_is_kept_before_anybody_replies(journal_of: Callable[[str], Journal], tmp_path: Path) -> None:
    asked_for = asyncio.Event()

    class Silent(ReachableOptimizer):
        async def call(self, request: Request, *, timeout_s: float) -> Reply:
            asked_for.set()
            return await asyncio.Future()

    words = await words_of(ReachableOptimizer())
    speaking = asyncio.create_task(say_for(RANK_0, words, Silent, journal_of))
    await asked_for.wait()
    [kept] = contents(tmp_path)
    assert len(kept.letters) == 1
    speaking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await speaking
    [kept] = contents(tmp_path)
    assert len(kept.letters) == 1


async def test_only_its_ranks_know_under_which_id_it_is_reported(optimizer: ReachableOptimizer) -> None:
    """A trial_id follows from an event, and a machine has a name: others could use such an id before."""
    words = await words_of(optimizer)
    of_another_training = replace(words, state=replace(words.state, key="another key"))
    assert words.request(RANK_0) == words.request(RANK_0)
    assert words.request(RANK_0).command_id != of_another_training.request(RANK_0).command_id


async def test_what_several_survivors_kept_during_an_outage_is_recorded_once(
    optimizer: ReachableOptimizer, journal_of: Callable[[str], Journal], tmp_path: Path
) -> None:
    words = await words_of(optimizer)
    optimizer.is_away = True
    for _ in range(2):
        await say_for(RANK_0, words, lambda: optimizer, journal_of)
    optimizer.is_away = False
    [kept] = contents(tmp_path)
    assert len(kept.letters) == 2
    assert (await flush(kept.folder, optimizer, timeout_s=PATIENCE_S)).delivered == 2
    [trial] = await optimizer.store.trials("job")
    assert (trial.outcome, trial.late_outcome) == (Outcome.INTERRUPTED, None)
    assert "the process of rank 0 has died" in trial.outcome_reason


async def test_the_end_of_a_trial_that_is_not_registered_yet_is_kept_with_what_registers_it(
    optimizer: ReachableOptimizer, journal_of: Callable[[str], Journal], tmp_path: Path
) -> None:
    words = await words_of(optimizer)
    alone = replace(words, state=replace(words.state, trial_number=None, trial_id=None))
    await say_for(RANK_0, alone, lambda: optimizer, journal_of)
    [kept] = contents(tmp_path)
    assert [type(letter.request.command) for letter in kept.letters] == [BeginTrial, FinishTrial]
    for _ in range(2):  # rank 0 has left the same beginning
        begin = Request(command_id=beginning_id("key"), job_id="job", command=kept.letters[0].request.command)
        assert isinstance(await optimizer.call(begin, timeout_s=PATIENCE_S), TrialBegun)
    assert (await flush(kept.folder, optimizer, timeout_s=PATIENCE_S)).delivered == 2
    assert [trial.outcome for trial in await optimizer.store.trials("job")] == [None, Outcome.INTERRUPTED]
