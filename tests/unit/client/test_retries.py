import asyncio
from dataclasses import replace

import pytest

from bso.domain.commands import BeginTrial, Command, Request
from bso.domain.replies import EpochJudged, LeaseRenewed, Problem, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso_client import Unreachable
from bso_client.delivery.lease import keep_lease
from bso_client.delivery.retries import ask
from bso_client.training.state import TrainingState
from bso_client.training.transitions import received
from tests.servers import PATIENCE_S
from tests.unit.client.doubles import HARDWARE, job_spec

LATER = Problem(type="busy", title="Busy", detail="later", is_retryable=True)
RENEWED = LeaseRenewed(
    trial_number=1, recurrence_id="r", batch_size=64, epoch=1.0, time_s=2.0, energy_j=20.0, bound=7.0, lease_s=0.03
)


class Scripted:
    """Answers with what stands in a list, and raises what is an exception."""

    def __init__(self, *answers: Reply | Exception) -> None:
        self.answers = list(answers)
        self.came: list[Request] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        self.came.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def request() -> Request:
    return Request(
        command_id="0197a8f0-0000-7000-8000-000000000000", job_id="job", command=BeginTrial(hardware=HARDWARE)
    )


async def test_a_question_is_asked_again_under_the_same_command_id() -> None:
    begun = TrialBegun(
        trial_number=1,
        trial_id="x",
        recurrence_id="r",
        attempt=1,
        batch_size=64,
        reason="",
        is_last_attempt=False,
        bound=None,
        lease_s=600.0,
        spec=job_spec().resolve(),
    )
    transport = Scripted(LATER, begun)
    deadline = asyncio.get_running_loop().time() + PATIENCE_S

    assert await ask(transport, request(), TrialBegun, deadline=deadline) is begun
    assert len({each.command_id for each in transport.came}) == 1


async def test_an_answer_to_another_question_is_none() -> None:
    transport = Scripted(EpochJudged(should_stop=False, reason="", cost=1.0, bound=None))
    with pytest.raises(Unreachable, match="expected TrialBegun as reply, got EpochJudged"):
        await ask(transport, request(), TrialBegun, deadline=asyncio.get_running_loop().time() + PATIENCE_S)


async def test_a_renewal_that_fails_is_tried_again_until_the_trial_has_ended() -> None:
    class Sender:
        state = TrainingState(
            job_id="job",
            key="k",
            batch_size=64,
            reason="",
            spec=job_spec().resolve(),
            hardware=HARDWARE,
            trial_number=1,
            trial_id="x",
            lease_s=0.03,
        )

        def received(self, command: Command, reply: Reply) -> None:
            self.state = received(self.state, command, reply).state

    sender = Sender()

    class Ending(Scripted):
        async def call(self, request: Request, *, timeout_s: float) -> Reply:
            if len(self.answers) == 1:
                sender.state = replace(sender.state, outcome=Outcome.CONVERGED)
            return await super().call(request, timeout_s=timeout_s)

    transport = Ending(Unreachable("away"), LATER, RENEWED)
    await asyncio.wait_for(keep_lease(transport, sender), PATIENCE_S)

    assert len(transport.came) == 3
    assert sender.state.bound == 7.0


async def test_a_retry_after_the_deadline_is_refused_at_once() -> None:
    later = Problem(
        type="job_in_trouble", title="The job is in trouble", detail="later", is_retryable=True, retry_after_s=3600.0
    )
    transport = Scripted(later)
    with pytest.raises(Unreachable, match="The job is in trouble"):
        await ask(transport, request(), TrialBegun, deadline=asyncio.get_running_loop().time() + PATIENCE_S)
    assert len(transport.came) == 1
