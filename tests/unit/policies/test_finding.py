"""Policies are found by their names, and a job whose policy is not installed here harms nobody."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import pytest

import bso.domain
from bso.domain.commands import BeginTrial, Command, DeleteJob, RegisterJob, ReportEpoch, Request
from bso.domain.events import JobDeleted, TrialEnded
from bso.domain.job import Job
from bso.domain.policies import (
    PolicyMissing,
    default_policy,
    is_policy_name,
    own_policies,
    policy_named,
    policy_names,
)
from bso.domain.replies import Deleted, EpochJudged, Registered, TrialBegun
from bso.domain.trial import Outcome, TrialState
from bso.schema.codec import EVENTS, all_events, decode_event, encode_event, job_from_state, state_of, wire_name
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine
from bso.service.listed_jobs import listed_job
from bso.service.memory import InMemoryStore
from tests.fakes.policies import installed
from tests.unit.domain.builders import A100, THE_EPOCH, command_id
from tests.unit.policies import broken_policies
from tests.unit.policies.broken_policies import Remembered

R = TypeVar("R")

SPEC: dict[str, Any] = {"batch_sizes": [16, 32], "default_batch_size": 16}


def test_those_of_this_distribution_are_found_and_one_of_them_is_the_default() -> None:
    assert set(own_policies()) <= set(policy_names())
    assert default_policy() in own_policies()
    for name in own_policies():
        assert policy_named(name).name == name


@pytest.mark.parametrize("name", ["cruve", "testing", "../evil", ""])
def test_one_that_is_not_installed_is_missing_and_the_error_names_those_that_are(name: str) -> None:
    with pytest.raises(PolicyMissing, match=rf"policy '{re.escape(name)}' is not installed here, only .*curve"):
        policy_named(name)


@pytest.mark.parametrize("thing", ["INSTALLED", "Sound", "INSTALLED.sound"], ids=["no policy", "a class", "another"])
def test_what_is_no_policy_of_that_name_is_missing_and_harms_no_other(tmp_path: Path, thing: str) -> None:
    with installed(tmp_path / "site", odd=f"{broken_policies.__name__}:{thing}"):
        with pytest.raises(PolicyMissing, match=r"an instance of bso\.domain\.policy\.Policy whose name is 'odd'"):
            policy_named("odd")
        assert "round_ended" in all_events()


def test_one_that_cannot_be_loaded_is_missing_with_the_reason_and_harms_no_other(tmp_path: Path) -> None:
    with installed(tmp_path / "site", gone="no_such_module:POLICY", torn=f"{broken_policies.__name__}:NOTHING"):
        for name, reason in (("gone", "ModuleNotFoundError"), ("torn", "AttributeError")):
            words = rf"policy '{name}' is installed, but .*:\w+ cannot be loaded: {reason}"
            with pytest.raises(PolicyMissing, match=words):
                policy_named(name)
        assert {"gone", "torn"} < set(policy_names())
        assert set(EVENTS) < set(all_events())
    assert not {"gone", "torn"} & set(policy_names())


def test_one_that_is_missing_is_looked_for_once(tmp_path: Path) -> None:
    with installed(tmp_path / "one"):
        with pytest.raises(PolicyMissing, match="'sound' is not installed here"):
            policy_named("sound")
        points = tmp_path / "one" / "theirs-1.0.dist-info" / "entry_points.txt"
        points.write_text(f"[bso.policies]\nsound = {broken_policies.__name__}:INSTALLED.sound\n", encoding="utf-8")
        assert "sound" in policy_names()
        with pytest.raises(PolicyMissing, match="'sound' is not installed here"):
            policy_named("sound")
    with installed(tmp_path / "two", sound=f"{broken_policies.__name__}:INSTALLED.sound"):
        assert policy_named("sound").name == "sound", "another process finds it"


def test_nobody_takes_the_place_of_a_policy_of_this_distribution(tmp_path: Path) -> None:
    ours = policy_named("curve")
    with installed(tmp_path / "site", curve=f"{broken_policies.__name__}:INSTALLED.sound"):
        assert policy_named("curve") is ours
        assert policy_names().count("curve") == 1


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("curve", True), ("a" * 64, True), *((no, False) for no in ("a" * 65, "Curve", "1st", "a-b", "a\n", "", 7))],
)
def test_names_of_policies(name: object, is_one: bool) -> None:
    assert is_policy_name(name) is is_one


def test_the_events_that_policies_have_of_their_own_have_different_names() -> None:
    names = [wire_name(event) for name in policy_names() for event in policy_named(name).events]
    assert len(names) == len(set(names))


def test_the_domain_names_no_policy() -> None:
    for source in Path(bso.domain.__path__[0]).rglob("*.py"):
        words = set(re.findall(r"\w+", source.read_text(encoding="utf-8")))
        assert not words & set(own_policies()), source


async def attempt(engine: Engine, job_id: str, number: int, command: Any) -> Answer | Undecided:
    """The answer to one command."""
    request = Request(command_id=command_id(number), job_id=job_id, command=command)
    (answer,) = await engine.attempt([request])
    return answer


async def test_a_job_whose_policy_is_not_installed_is_left_to_those_who_have_it_and_others_go_on() -> None:
    engine = Engine(InMemoryStore(lambda: THE_EPOCH))
    missing = await attempt(engine, "theirs", 1, RegisterJob(spec={**SPEC, "policy": "theirs"}))
    assert isinstance(missing, Undecided)
    assert isinstance(missing.cause, PolicyMissing)
    ours = await attempt(engine, "ours", 2, RegisterJob(spec=SPEC))
    assert isinstance(ours, Answer)
    assert isinstance(ours.reply, Registered)
    assert isinstance(await attempt(engine, "ours", 3, BeginTrial(hardware=A100)), Answer)


class Place:
    """A store, and whatever works on it: each command is decided by an engine that has read nothing before."""

    def __init__(self) -> None:
        self.store = InMemoryStore(lambda: THE_EPOCH)
        self.sent = 0

    async def send(self, command: Command) -> Answer | Undecided:
        self.sent += 1
        return await attempt(Engine(self.store), "theirs", self.sent, command)

    async def reply(self, command: Command, expected: type[R]) -> R:
        """The reply, which must be of the type that is expected."""
        answer = await self.send(command)
        assert isinstance(answer, Answer), answer
        assert isinstance(answer.reply, expected), answer
        return answer.reply

    async def train(self) -> None:
        """A trial that reaches its target with its first epoch."""
        begun = await self.reply(BeginTrial(hardware=A100), TrialBegun)
        number, trial_id = begun.trial_number, begun.trial_id
        command = ReportEpoch(
            trial_number=number, trial_id=trial_id, epoch=1.0, time_s=10.0, energy_j=100.0, metric=0.95
        )
        assert (await self.reply(command, EpochJudged)).outcome is Outcome.CONVERGED

    async def job(self) -> Job:
        """The job as it is stored."""
        stored = await self.store.job("theirs")
        assert stored is not None
        job = job_from_state("theirs", stored.last_seq, json.loads(stored.state))
        assert json.loads(state_of(job)) == json.loads(stored.state)
        return job

    async def memory(self, policy: str) -> Any:
        """What the policy remembers on the hardware kind, in the version that learnt it."""
        return (await self.job()).versions[1].knowledge_on(A100).memories.get(policy)


async def test_what_a_policy_remembers_is_kept_while_it_is_not_installed_and_the_job_may_go_on_under_another(
    tmp_path: Path,
) -> None:
    place, spec = Place(), {**SPEC, "target_metric": 0.9}
    hoarding = {"hoarding": f"{broken_policies.__name__}:INSTALLED.hoarding"}
    with installed(tmp_path / "one", **hoarding):
        await place.reply(RegisterJob(spec={**spec, "policy": "hoarding"}), Registered)
        await place.train()
        remembered = await place.memory("hoarding")
        assert isinstance(remembered, Remembered)
        assert len(remembered.costs) == 1

    assert await place.memory("hoarding") == asdict(remembered) | {"costs": list(remembered.costs)}
    undecided = await place.send(BeginTrial(hardware=A100))
    assert isinstance(undecided, Undecided)
    assert isinstance(undecided.cause, PolicyMissing)
    (overview,) = await place.store.overviews()
    assert listed_job(overview).description is None, "the list of jobs goes on"

    await place.reply(RegisterJob(spec={**spec, "policy": "curve"}), Registered)
    await place.train()
    assert (await place.job()).version.spec.policy == "curve"
    with installed(tmp_path / "two", **hoarding):
        assert await place.memory("hoarding") == remembered
        await place.reply(RegisterJob(spec={**spec, "policy": "hoarding"}), Registered)
        await place.train()
        assert await place.memory("curve") is not None


async def test_a_job_whose_policy_is_not_installed_can_be_deleted_and_its_trials_are_cancelled(tmp_path: Path) -> None:
    place = Place()
    with installed(tmp_path / "site", hoarding=f"{broken_policies.__name__}:INSTALLED.hoarding"):
        await place.reply(RegisterJob(spec={**SPEC, "policy": "hoarding", "target_metric": 0.9}), Registered)
        await place.train()
        await place.reply(BeginTrial(hardware=A100), TrialBegun)

    assert (await place.reply(DeleteJob(), Deleted)).cancelled_trials == (2,)
    assert (await place.job()).is_deleted
    ended = (await place.store.trials("theirs"))[-1]
    assert (ended.trial_number, ended.state, ended.outcome) == (2, TrialState.ENDED, Outcome.CANCELLED)
    last = [stored.recorded.event for stored in await place.store.history("theirs")][-2:]
    assert isinstance(last[0], JobDeleted)
    assert isinstance(last[1], TrialEnded)
    assert (last[1].trial_number, last[1].reason) == (2, "the job was deleted")


async def test_the_log_of_a_policy_that_is_not_installed_is_read_and_written_again_unchanged(tmp_path: Path) -> None:
    place = Place()
    with installed(tmp_path / "site", hoarding=f"{broken_policies.__name__}:INSTALLED.hoarding"):
        await place.reply(RegisterJob(spec={**SPEC, "policy": "hoarding", "target_metric": 0.9}), Registered)
        await place.train()
        log = [encode_event(stored.recorded) for stored in await place.store.history("theirs")]
    assert [encode_event(decode_event(message)) for message in log] == log


async def test_from_a_job_under_a_policy_that_takes_nothing_over_nothing_is_inherited_and_that_is_said(
    tmp_path: Path,
) -> None:
    place, spec = Place(), {**SPEC, "policy": "sound", "target_metric": 0.9}
    with installed(tmp_path / "site", sound=f"{broken_policies.__name__}:INSTALLED.sound"):
        await place.reply(RegisterJob(spec=spec), Registered)
        await place.train()
        other = await attempt(Engine(place.store), "another", 99, RegisterJob(spec=spec, like="theirs"))
    assert isinstance(other, Answer)
    assert isinstance(other.reply, Registered)
    assert other.reply.warnings == (
        "nothing is inherited from job theirs: it is under policy sound, which takes nothing over from it",
    )
