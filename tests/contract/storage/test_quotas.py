"""Quotas: the jobs of a login are counted so that no two registrations count the same."""

import asyncio
from dataclasses import replace

import pytest

from bso.domain.commands import DeleteJob, GiveJob, Request
from bso.domain.decide import Rules
from bso.domain.quotas import Quota
from bso.domain.replies import Deleted, Problem, Registered, RightsRecorded
from bso.service.engine import Engine
from bso.service.ports import Store
from tests.contract.storage.conftest import OpenStore
from tests.contract.storage.job_requests import ask, registration, request

THREE = Rules(quotas={"*": Quota(jobs=3)}, operators=frozenset({"root"}))


def registering(job_id: str, user: str = "ann") -> Request:
    return replace(registration(job_id), user=user)


async def owned(store: Store, owner: str) -> list[str]:
    return [job.job_id for job in await store.jobs() if job.owner == owner and not job.is_deleted]


async def test_registrations_at_the_same_moment_do_not_pass_the_limit_together(open_another: OpenStore) -> None:
    engines = [Engine(open_another(), THREE) for _ in range(4)]
    requests = [registering(f"job-{number}", "ann" if number % 2 else "bob") for number in range(24)]
    both = zip(engines * 6, requests, strict=True)
    answers = await asyncio.gather(*(ask(engine, one) for engine, one in both))
    replies = [answer.reply for [answer] in answers]
    assert sum(isinstance(reply, Registered) for reply in replies) == 6
    assert {reply.type for reply in replies if isinstance(reply, Problem)} == {"over_quota"}
    store = open_another()
    assert [len(await owned(store, user)) for user in ("ann", "bob")] == [3, 3]
    assert len(await store.jobs()) == 6, "no row is left that stood for a login"


async def test_registrations_in_one_batch_are_counted_one_after_another(store: Store) -> None:
    requests = [registering(f"job-{number}") for number in range(5)]
    answers = await ask(Engine(store, THREE), *requests)
    assert [isinstance(answer.reply, Registered) for answer in answers] == [True] * 3 + [False] * 2
    assert await owned(store, "ann") == ["job-0", "job-1", "job-2"]


async def test_a_deleted_job_counts_until_it_is_purged_and_its_owner_may_register_it_again(store: Store) -> None:
    engine = Engine(store, THREE)
    await ask(engine, *(registering(f"job-{number}") for number in range(3)))
    [deleted, refused, again] = await ask(
        engine, request(DeleteJob(), job_id="job-0", user="ann"), registering("another"), registering("job-0")
    )
    assert isinstance(deleted.reply, Deleted)
    assert isinstance(refused.reply, Problem)
    assert isinstance(again.reply, Registered), "it is no other job"
    await ask(engine, request(DeleteJob(), job_id="job-0", user="ann"))
    [again] = await ask(engine, registering("job-0"))
    assert isinstance(again.reply, Registered)


async def test_a_job_is_given_to_whom_has_room_for_it(store: Store) -> None:
    engine = Engine(store, THREE)
    await ask(engine, *(registering(f"job-{number}") for number in range(3)))
    await ask(engine, registering("bobs", "bob"))
    giving = request(GiveJob(login="bob"), job_id="job-0", user="ann")
    [refused, given, registered] = await ask(
        engine, request(GiveJob(login="ann"), job_id="bobs", user="bob"), giving, registering("another")
    )
    assert isinstance(refused.reply, Problem)
    assert refused.reply.type == "over_quota"
    assert isinstance(given.reply, RightsRecorded)
    assert isinstance(registered.reply, Registered), "it has made room"
    assert sorted(await owned(store, "bob")) == ["bobs", "job-0"]


@pytest.mark.parametrize("user", ["root", None])
async def test_who_has_no_quota_is_not_counted(store: Store, user: str | None) -> None:
    requests = [replace(registration(f"job-{number}"), user=user) for number in range(5)]
    answers = await ask(Engine(store, THREE), *requests)
    assert all(isinstance(answer.reply, Registered) for answer in answers)


async def test_a_job_that_is_deleted_and_registered_again_in_one_batch_is_counted(store: Store) -> None:
    engine = Engine(store, replace(THREE, teams=frozenset({"vision"})))
    await ask(engine, registering("vision-a", "vision-a"))
    await ask(engine, *(registering(f"vision-{number}", "vision-b") for number in range(3)))
    deleting = request(DeleteJob(), job_id="vision-a", user="vision-b")
    [_, refused] = await ask(engine, deleting, registering("vision-a", "vision-b"))
    assert isinstance(refused.reply, Problem)
    assert refused.reply.type == "over_quota"
    assert len(await owned(store, "vision-b")) == 3


async def test_a_name_that_is_no_login_is_refused_before_anything_is_counted(store: Store) -> None:
    engine = Engine(store, THREE)
    await ask(engine, registering("job"))
    [refused] = await ask(engine, request(GiveJob(login="a\0b"), job_id="job", user="ann"))
    assert isinstance(refused.reply, Problem)
    assert refused.reply.type == "invalid_login"
