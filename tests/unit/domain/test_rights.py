"""Rights: which login may do what with a job, by itself, by its team, and by what its owner grants."""

import shlex

import pytest

from bso.domain import commands as do
from bso.domain.decide import Rules
from bso.domain.decide.operations import MOST_GRANTS
from bso.domain.events import JobGiven, JobGranted
from bso.domain.foreign_text import is_plain
from bso.domain.replies import JobDescription, Problem, Registered, RightsRecorded, TrialBegun
from bso.domain.rights import Right, owns, team_of
from tests.unit.domain.builders import A100, JobLife, problem_of

RULES = Rules(operators=frozenset({"root"}), teams=frozenset({"vision", "vision-lab"}))


def life_of(owner: str | None = "alice", *, job_id: str = "job") -> JobLife:
    life = JobLife(job_id=job_id, rules=RULES)
    life.register(user=owner)
    return life


def grant(life: JobLife, login: str, right: Right | None, *, by: str = "alice") -> RightsRecorded:
    reply = life.send(do.GrantJob(login=login, right=right), user=by)
    assert isinstance(reply, RightsRecorded), reply
    return reply


@pytest.mark.parametrize(
    ("name", "team"),
    [
        ("vision", "vision"),
        ("vision-ci", "vision"),
        ("vision-lab", "vision-lab"),
        ("vision-lab-7", "vision-lab"),
        ("visions", None),
        ("vision.ci", None),
        ("television", None),
        ("", None),
    ],
)
def test_a_team_is_the_longest_name_that_a_login_begins_with(name: str, team: str | None) -> None:
    assert team_of(name, RULES.teams) == team


@pytest.mark.parametrize(
    ("user", "owner", "job_id", "expected"),
    [
        ("ann", "ann", "job", True),
        ("ann", "bob", "job", False),
        ("vision-ann", "vision-bob", "job", True),
        ("vision-ann", "vision-lab", "job", False),
        ("vision-ann", "ann", "vision-job", True),
        ("ann", "vision-bob", "vision-job", False),
        (None, "bob", "job", True),
        ("ann", None, "job", True),
        ("ann", None, "vision-job", False),
        ("vision", None, "vision-job", True),
        ("", "bob", "job", False),
    ],
)
def test_a_job_is_its_owners_and_its_teams(user: str | None, owner: str | None, job_id: str, *, expected: bool) -> None:
    assert owns(user, owner=owner, job_id=job_id, teams=RULES.teams) is expected


@pytest.mark.parametrize("right", Right)
def test_each_right_includes_those_before_it(right: Right) -> None:
    life = life_of()
    grant(life, "bob", right)
    commands: dict[Right, do.Command] = {
        Right.READ: do.DescribeJob(),
        Right.TRAIN: do.BeginTrial(hardware=A100),
        Right.OPERATE: do.AllowBatchSize(batch_size=64),
    }
    for needed, command in commands.items():
        reply = life.send(command, user="bob")
        assert (isinstance(reply, Problem) and reply.type == "not_owner") is (needed not in right.included)


def test_a_right_ends_when_it_is_taken_away() -> None:
    life = life_of()
    assert grant(life, "bob", Right.TRAIN).grants == {"bob": Right.TRAIN}
    trial = life.send(do.BeginTrial(hardware=A100), user="bob")
    assert isinstance(trial, TrialBegun)
    assert grant(life, "bob", None).grants == {}
    report = do.ReportEpoch(
        trial_number=trial.trial_number, trial_id=trial.trial_id, epoch=1, time_s=1, energy_j=1, metric=0.1
    )
    assert problem_of(life.send(report, user="bob")).type == "not_owner", "although bob knows the trial_id"


@pytest.mark.parametrize("login", ["bob\x1b[2J", "bob\n", "\u202ebob", "bob\u200b", ""], ids=ascii)
def test_a_login_with_hidden_characters_is_none(login: str) -> None:
    for command in (do.GrantJob(login=login, right=Right.READ), do.GiveJob(login=login)):
        detail = problem_of(life_of().send(command, user="alice")).detail
        assert "must be the name of a login of the broker" in detail
        assert is_plain(detail)


def test_a_refusal_names_the_owner_and_the_command_that_would_help() -> None:
    problem = problem_of(life_of().send(do.BeginTrial(hardware=A100), user="bob"))
    assert "belongs to alice" in problem.detail
    who = "its owner, the owner's team or an operator"
    assert f"{who} can allow it: `bso jobs grant job bob --may train`" in problem.detail
    assert "bso jobs grant" not in problem_of(life_of().send(do.GiveJob(login="bob"), user="bob")).detail


def test_who_may_train_registers_again_and_changes_nothing() -> None:
    life = life_of()
    grant(life, "bob", Right.TRAIN)
    again = do.RegisterJob(spec={})
    assert isinstance(life.send(again, user="bob"), Registered)
    changing = do.RegisterJob(spec={"target_metric": 0.123})
    problem = problem_of(life.send(changing, user="bob"))
    assert (problem.type, "--may operate" in problem.detail) == ("not_owner", True)
    assert life.job is not None
    assert life.job.current_version == 1
    grant(life, "bob", Right.OPERATE)
    assert isinstance(life.send(changing, user="bob"), Registered)


def test_rights_that_are_recorded_twice_are_one_event() -> None:
    life = life_of()
    for command in (do.GrantJob(login="bob", right=Right.READ), do.GiveJob(login="carol")):
        for _ in range(2):
            assert isinstance(life.send(command, user="root"), RightsRecorded)
    given = [event for event in life.history if isinstance(event, JobGranted | JobGiven)]
    assert [type(event) for event in given] == [JobGranted, JobGiven]


def test_who_gives_a_job_away_has_no_right_to_it_any_more() -> None:
    life = life_of()
    assert life.send(do.GiveJob(login="bob"), user="alice") == RightsRecorded(owner="bob")
    assert problem_of(life.send(do.DescribeJob(), user="alice")).type == "not_owner"
    described = life.send(do.DescribeJob(), user="bob")
    assert isinstance(described, JobDescription)
    assert described.owner == "bob"


def test_what_was_granted_ends_with_the_job() -> None:
    life = life_of()
    grant(life, "bob", Right.OPERATE)
    life.send(do.DeleteJob(), user="bob")
    life.register(user="alice", batch_sizes=[16, 64], default_batch_size=64)
    assert problem_of(life.send(do.DescribeJob(), user="bob")).type == "not_owner"


def test_a_name_of_a_team_is_taken_by_nobody_else() -> None:
    stranger = JobLife(job_id="vision-job", rules=RULES)
    assert problem_of(stranger.send(do.RegisterJob(spec={"batch_sizes": [1]}), user="ann")).type == "not_owner"
    for user in ("vision-ann", "root", None):
        JobLife(job_id="vision-job", rules=RULES).register(user=user)


def test_a_job_without_an_owner_is_given_by_operators_only() -> None:
    life = life_of(None)
    assert isinstance(life.send(do.BeginTrial(hardware=A100), user="alice"), TrialBegun)
    for command in (do.GiveJob(login="alice"), do.GrantJob(login="alice", right=Right.READ)):
        assert "belongs to nobody" in problem_of(life.send(command, user="alice")).detail
    assert life.send(do.GiveJob(login="alice"), user="root") == RightsRecorded(owner="alice")


def test_a_job_without_an_owner_is_changed_deleted_and_registered_again_by_operators_only() -> None:
    life = life_of(None)
    again = do.RegisterJob(spec={"batch_sizes": [16, 64], "default_batch_size": 64})
    for command in (do.RegisterJob(spec={"target_metric": 0.7}), do.AllowBatchSize(batch_size=64), do.DeleteJob()):
        refused = problem_of(life.send(command, user="alice"))
        assert (refused.type, "an operator can give it to somebody: `bso jobs give job alice`" in refused.detail) == (
            "not_owner",
            True,
        )
    life.send(do.DeleteJob(), user="root")
    assert problem_of(life.send(again, user="alice")).type == "not_owner"
    assert isinstance(life.send(again, user="root"), Registered)


def test_a_refusal_names_a_remedy_that_works() -> None:
    """Where the values differ, another right is needed; a deleted job cannot be granted; a login may need quotes."""
    life = life_of()
    same, other = do.RegisterJob(spec={}), do.RegisterJob(spec={"target_metric": 0.7})
    for user, right in (("bob", Right.TRAIN), ("bob b", Right.OPERATE)):
        refused = problem_of(life.send(same if right is Right.TRAIN else other, user=user)).detail
        assert f"`bso jobs grant job {shlex.quote(user)} --may {right.value}`; for a job of your own" in refused
        grant(life, user, right)
        assert isinstance(life.send(same if right is Right.TRAIN else other, user=user), Registered)
    life.send(do.DeleteJob(), user="alice")
    for command in (do.DescribeJob(), do.BeginTrial(hardware=A100), same):
        assert "choose another job_id" in problem_of(life.send(command, user="carol")).detail


def test_the_name_of_a_deleted_job_stays_its_owners() -> None:
    life = life_of()
    grant(life, "bob", Right.OPERATE)
    life.send(do.DeleteJob(), user="bob")
    again = do.RegisterJob(spec={"batch_sizes": [16, 64], "default_batch_size": 64})
    assert problem_of(life.send(again, user="bob")).type == "not_owner"
    assert isinstance(life.send(again, user="alice"), Registered)


def test_nothing_is_inherited_from_a_job_that_the_login_may_not_read() -> None:
    model = life_of("carol", job_id="model")
    assert model.job is not None
    life = JobLife(rules=RULES, siblings={"model": model.job})
    registered = life.register(user="alice", like="model")
    assert any("this login cannot read it" in words for words in registered.warnings)


@pytest.mark.parametrize("login", ["", "a" * 256, "new\nline", "nul\x00"])
def test_what_is_no_login_is_refused(login: str) -> None:
    life = life_of()
    for command in (do.GrantJob(login=login, right=Right.READ), do.GiveJob(login=login)):
        assert problem_of(life.send(command, user="alice")).type == "invalid_login"


def test_a_job_is_granted_to_so_many_logins_and_no_more() -> None:
    life = life_of()
    for number in range(MOST_GRANTS):
        grant(life, f"login-{number}", Right.READ)
    one_more = do.GrantJob(login="one-more", right=Right.READ)
    assert problem_of(life.send(one_more, user="alice")).type == "too_many_grants"
    assert grant(life, "login-0", Right.TRAIN).grants["login-0"] is Right.TRAIN
