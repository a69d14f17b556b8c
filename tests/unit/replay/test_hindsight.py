"""What was known when a trial began, as the log gives it, is what the job knew then."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from bso.domain.decide import describe_job
from bso.domain.events import TrialStarted
from bso.domain.log import RecordedEvent
from bso.domain.policies import own_policies
from bso.replay.fold import LogBroken
from bso.replay.hindsight import before_trial
from tests.unit.domain.builders import A100, JobLife

COSTS = {16: 40.0, 32: 25.0, 64: 20.0, 128: 15.0, 256: 30.0}


async def logged(life: JobLife, *, after_seq: int = 0) -> AsyncIterator[RecordedEvent]:
    for seq, event in enumerate(life.history, start=1):
        if seq > after_seq:
            yield RecordedEvent(
                job_id="job", seq=seq, recorded_at=datetime(2026, 1, 1, tzinfo=UTC), command_id="c", part=0, event=event
            )


@pytest.mark.parametrize("policy", own_policies())
async def test_hindsight_is_what_was_known(policy: str) -> None:
    life = JobLife()
    life.register(policy=policy)
    known = {}
    for number in range(25):
        assert life.job is not None
        before = describe_job(life.job).kinds
        trial = life.begin(f"r{number}")
        known[trial.trial_number] = before
        life.converge(trial, COSTS[trial.batch_size])
    for number, kinds in known.items():
        seen = await before_trial("job", number, logged(life))
        assert seen is not None
        assert seen.started.trial_number == number
        assert (seen.known is None) == (not kinds)
        assert seen.known is None or seen.known == kinds[0]


async def test_hindsight_counts_the_trials_of_that_moment() -> None:
    life = JobLife()
    life.register()
    life.run("a", COSTS)
    first = life.begin("b")
    life.converge(first, 7.0)
    life.begin("c")
    seen = await before_trial("job", 3, logged(life))
    assert seen is not None
    assert seen.tallies is not None
    assert sum(tally.ended for tally in seen.tallies.values()) == 2
    assert seen.tallies[first.batch_size].mean_cost in (7.0, (7.0 + COSTS[first.batch_size]) / 2)


async def test_other_trials_that_were_running_are_shown() -> None:
    life = JobLife()
    life.register()
    first = life.begin("a")
    second = life.begin("b")
    seen = await before_trial("job", second.trial_number, logged(life))
    assert seen is not None
    assert seen.running == (first.batch_size,)
    assert seen.hardware == A100.describe()


async def test_a_trial_that_the_log_does_not_hold_is_none() -> None:
    life = JobLife()
    life.register()
    life.begin("a")
    assert await before_trial("job", 2, logged(life)) is None


async def test_a_log_with_a_gap_is_refused() -> None:
    life = JobLife()
    life.register()
    life.run("a", COSTS)
    life.begin("b")
    last = max(seq for seq, event in enumerate(life.history, start=1) if isinstance(event, TrialStarted))
    with pytest.raises(LogBroken, match="begins at event"):
        await before_trial("job", 2, logged(life, after_seq=last - 2))
