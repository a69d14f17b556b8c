"""Policies are found by their names, and a job whose policy is not installed here harms nobody."""

import re
from pathlib import Path
from typing import Any

import pytest

import bso.domain
from bso.domain.commands import BeginTrial, RegisterJob, Request
from bso.domain.policies import PolicyMissing, default_policy, own_policies, policy_named, policy_names
from bso.domain.replies import Registered
from bso.schema.codec import wire_name
from bso.service.answers import Answer, Undecided
from bso.service.engine import Engine
from bso.service.memory import InMemoryStore
from tests.unit.domain.builders import A100, THE_EPOCH, command_id

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
