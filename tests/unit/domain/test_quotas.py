"""Quotas: how many jobs, batch sizes and open recurrences a login may have."""

from typing import Any

import pytest

from bso.domain import commands as do
from bso.domain.decide import Needs, Rules, needs
from bso.domain.events import RecurrenceEnded
from bso.domain.job import Job
from bso.domain.quotas import NO_LIMITS, Quota
from bso.domain.replies import Problem, Registered, Reply, RightsRecorded, TrialBegun
from bso.domain.rights import Right
from tests.unit.domain.builders import A100, SIZES, JobLife, problem_of

SPEC: dict[str, Any] = {"batch_sizes": list(SIZES), "default_batch_size": 64}


def limited(login: str = "*", *, operators: frozenset[str] = frozenset(), **quota: Any) -> JobLife:
    return JobLife(rules=Rules(quotas={login: Quota(**quota)}, operators=operators))


def register(life: JobLife, user: str | None, **spec: Any) -> Reply:
    return life.send(do.RegisterJob(spec={**SPEC, **spec}), user=user)


def begin(life: JobLife, name: str, *, user: str = "ann") -> Reply:
    return life.send(do.BeginTrial(hardware=A100, recurrence_id=name), user=user)


def test_the_quota_of_a_login_is_its_own_or_everybodys_and_operators_have_none() -> None:
    own, everybodys = Quota(jobs=1), Quota(jobs=2)
    rules = Rules(quotas={"ann": own, "*": everybodys, "root": own}, operators=frozenset({"root"}))
    assert [rules.quota_of(user) for user in ("ann", "bob", "root", None)] == [own, everybodys, NO_LIMITS, NO_LIMITS]
    assert Rules().quota_of("ann") == NO_LIMITS


def test_a_login_that_owns_as_many_jobs_as_it_may_registers_no_other() -> None:
    life = limited(jobs=3)
    life.jobs_owned |= {"ann": 3, "bob": 0}
    problem = problem_of(register(life, "ann"))
    assert problem.type == "over_quota"
    assert not problem.is_retryable, "it would wait for ever"
    assert "login ann owns 3 jobs, those deleted and not purged included, and may own 3" in problem.detail
    assert [*problem.fields] == ["jobs"]
    assert not life.history
    assert isinstance(register(life, "bob"), Registered), "another login has its own quota"


def test_a_registered_job_is_registered_again_whatever_the_quota_is() -> None:
    life = limited(jobs=1)
    life.jobs_owned["ann"] = 0
    register(life, "ann")
    life.jobs_owned["ann"] = 1
    assert isinstance(register(life, "ann"), Registered)
    assert isinstance(register(life, "ann", target_metric=0.5), Registered)


@pytest.mark.parametrize("user", ["root", None])
def test_operators_and_the_database_have_no_limit(user: str | None) -> None:
    life = limited(jobs=0, batch_sizes=1, open_recurrences=1, operators=frozenset({"root"}))
    assert isinstance(register(life, user), Registered)


def test_the_jobs_of_the_new_owner_are_counted() -> None:
    new, registering, giving = Job(job_id="job"), do.RegisterJob(spec=SPEC), do.GiveJob(login="bob")
    life = JobLife()
    life.register(user="ann")
    assert life.job is not None
    assert needs(new, registering, user="ann") == Needs(new_owner="ann")
    assert needs(new, registering) == Needs()
    assert needs(life.job, do.GiveJob(login="a\0b"), user="ann") == Needs(), "it is no login"
    assert needs(life.job, registering, user="ann") == Needs()
    assert needs(life.job, giving, user="ann") == Needs(new_owner="bob")


@pytest.mark.parametrize(("user", "is_given"), [("ann", False), ("root", True), (None, True)])
def test_a_job_is_given_to_a_login_that_has_room_for_it_or_by_an_operator(user: str | None, is_given: bool) -> None:
    life = limited(jobs=2, operators=frozenset({"root"}))
    life.jobs_owned |= {"ann": 0, "bob": 2}
    register(life, "ann")
    reply = life.send(do.GiveJob(login="bob"), user=user)
    assert isinstance(reply, RightsRecorded if is_given else Problem)
    assert life.job is not None
    assert life.job.owner == ("bob" if is_given else "ann")


def test_a_login_may_have_fewer_batch_sizes_or_more_than_others() -> None:
    few, many = limited("ann", batch_sizes=2), limited("ann", batch_sizes=80)
    problem = problem_of(register(few, "ann"))
    assert (problem.type, problem.fields["batch_sizes"]) == (
        "invalid_spec",
        "must be at most 2, got 5: each choice takes longer the more there are",
    )
    sizes = {"batch_sizes": list(range(1, 81)), "default_batch_size": 8}
    assert isinstance(register(many, "ann", **sizes), Registered)
    assert isinstance(register(many, "bob", **sizes), Problem)


def test_where_jobs_are_limited_and_not_counted_nothing_is_decided() -> None:
    with pytest.raises(AssertionError, match="are counted"):
        register(limited(jobs=3), "ann")


def test_above_its_open_recurrences_a_login_waits_until_one_has_ended() -> None:
    life = limited(open_recurrences=2)
    life.register(user="ann")
    monday = begin(life, "monday")
    assert isinstance(monday, TrialBegun)
    assert isinstance(begin(life, "tuesday"), TrialBegun)
    before = len(life.history)
    problem = problem_of(begin(life, "wednesday"))
    assert (problem.type, problem.is_retryable, [*problem.fields]) == ("over_quota", True, ["open_recurrences"])
    assert problem.retry_after_s
    assert len(life.history) == before
    life.converge(monday, 10.0)
    assert isinstance(begin(life, "wednesday"), TrialBegun)


def test_another_trial_of_an_open_recurrence_opens_none() -> None:
    life = limited(open_recurrences=1)
    life.register(user="ann")
    begin(life, "monday")
    assert isinstance(begin(life, "monday"), TrialBegun)


def test_a_recurrence_that_nothing_runs_for_takes_no_place_and_stays_open() -> None:
    life = limited("ann", open_recurrences=1)
    life.register(user="ann")
    life.send(do.GrantJob(login="bob", right=Right.TRAIN), user="ann")
    for name in ("monday", "tuesday", "wednesday"):
        trial = begin(life, name, user="bob")
        assert isinstance(trial, TrialBegun)
        life.give_up(trial)
    assert life.job is not None
    assert len(life.job.recurrences) == 3
    assert isinstance(begin(life, "thursday"), TrialBegun)
    assert not life.happened(RecurrenceEnded)
    assert isinstance(begin(life, "monday"), Problem), "nor may trials run again for the others"
