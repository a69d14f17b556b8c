"""Rates: how fast a login may send to a worker, on a clock that only the test moves."""

from dataclasses import replace
from typing import Any

import pytest

from bso.domain.commands import DescribeJob, Request
from bso.domain.decide import Rules
from bso.domain.quotas import Quota
from bso_broker.messages import Delivery
from bso_workers.admission import Admission, Admitted, Origin, Undecidable
from bso_workers.metrics import Metrics
from bso_workers.rates import LETTER_BYTES_A_DAY, LETTERS_A_DAY, LetterRoom, Rates


class Clock:
    """Seconds since the test began."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def rates(clock: Clock, metrics: Metrics, **quota: Any) -> Rates:
    rules = Rules(quotas={"*": Quota(**quota)}, operators=frozenset({"root"}))
    return Rates(rules=rules, metrics=metrics, clock=clock)


def sent_by(user: str | None, body: bytes = b"x" * 100) -> Admitted:
    return Admitted(
        delivery=Delivery(body=body, message_id="1"),
        sender=Origin(user=user, reply_to=None),
        request=Request(command_id="1", job_id="job", command=DescribeJob(), user=user),
    )


def over(metrics: Metrics, login: str, limit: str) -> float | None:
    return metrics.registry.get_sample_value("bso_over_quota_total", {"login": login, "limit": limit})


def test_a_command_through_a_gateway_counts_as_its_users(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, commands_per_s=1.0)

    def through_gateway(user: str) -> Admitted:
        return replace(sent_by(user), sender=Origin(user="bso-gateway", reply_to=None))

    while limited.passed_by(through_gateway("ann")) is None:
        pass
    assert limited.passed_by(through_gateway("bob")) is None
    assert over(metrics, "ann", "commands_per_s") == 1
    assert over(metrics, "bso-gateway", "commands_per_s") is None


def test_after_a_burst_a_login_sends_at_its_rate(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, commands_per_s=10.0)
    taken = 0
    for _ in range(200):
        clock.now_s += 0.05  # 20 commands per second, for 10 s
        taken += limited.passed_by(sent_by("ann")) is None
    assert 140 <= taken <= 152, "10 per second for 10 s, and 50 at once"
    assert over(metrics, "ann", "commands_per_s") == 200 - taken


def test_one_who_sends_too_fast_is_said_how_long_to_wait(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, commands_per_s=2.0)
    while (passed := limited.passed_by(sent_by("ann"))) is None:
        pass
    assert passed.limit == "commands_per_s"
    assert passed.detail == "login ann sends faster than 2 commands per second to each worker"
    assert passed.wait_s == pytest.approx(0.5)
    clock.now_s += passed.wait_s
    assert limited.passed_by(sent_by("ann")) is None


def test_bytes_are_limited_and_a_command_larger_than_the_rate_passes_once(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, bytes_per_s=1000.0)
    large = sent_by("ann", b"x" * 20_000)
    assert limited.passed_by(large) is None
    passed = limited.passed_by(large)
    assert passed is not None
    assert passed.limit == "bytes_per_s"
    assert passed.wait_s == pytest.approx(15.0)


def test_what_passes_one_limit_counts_for_none(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, commands_per_s=1.0, bytes_per_s=1000.0)
    limited.passed_by(sent_by("ann", b"x" * 8000))
    for _ in range(100):
        assert limited.passed_by(sent_by("ann")) is not None
    clock.now_s = 3.5
    assert limited.passed_by(sent_by("ann")) is None


def test_each_login_has_its_own_rate_and_operators_none(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, commands_per_s=1.0)
    for login in ("ann", "root", None):
        for _ in range(10):
            limited.passed_by(sent_by(login))
    assert limited.passed_by(sent_by("ann")) is not None
    for login in ("bob", "root", None):
        assert limited.passed_by(sent_by(login)) is None


def test_messages_that_are_no_commands_count(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, bytes_per_s=1000.0)
    delivery = Delivery(body=b"", message_id="1", user_id="ann", discarded_bytes=6000)
    refused = Admission().admit(delivery)
    assert isinstance(refused, Undecidable)
    limited.passed_by(refused)
    passed = limited.passed_by(sent_by("ann"))
    assert passed is not None
    assert passed.wait_s == pytest.approx(1.0)


@pytest.mark.parametrize(("size", "kept"), [(10, LETTERS_A_DAY), (100_000, LETTER_BYTES_A_DAY // 100_000)])
def test_of_the_dead_letters_of_a_login_so_many_are_kept_a_day(clock: Clock, size: int, kept: int) -> None:
    room, letter = LetterRoom(clock=clock), Delivery(body=b"x" * size, message_id="1")
    for login in ("ann", "bob", None):
        assert sum(room.has_room_for(letter, login) for _ in range(2 * kept)) == kept + 1, "the last one begins in time"
    clock.now_s += 86_400 / 2
    assert sum(room.has_room_for(letter, "ann") for _ in range(2 * kept)) == kept // 2
    assert room.has_room_for(replace(letter, redelivered=True), "ann"), "it counted when it came first"


def test_of_too_many_logins_the_first_has_room_again(clock: Clock) -> None:
    room, letter = LetterRoom(clock=clock), Delivery(body=b"x" * LETTER_BYTES_A_DAY, message_id="1")
    while room.has_room_for(letter, "ann"):
        pass
    for number in range(10_000):
        assert room.has_room_for(letter, f"login-{number}")
    assert room.has_room_for(letter, "ann")


def test_the_series_of_a_login_begin_at_zero(clock: Clock, metrics: Metrics) -> None:
    rates(clock, metrics, commands_per_s=1.0).passed_by(sent_by("ann"))
    assert {over(metrics, "ann", limit) for limit in ("jobs", "commands_per_s", "bytes_per_s")} == {0.0}


def test_what_is_handed_over_again_is_not_counted_again(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, commands_per_s=1.0)
    again = replace(sent_by("ann"), delivery=Delivery(body=b"", message_id="1", redelivered=True))
    for _ in range(20):
        assert limited.passed_by(again) is None
    assert limited.passed_by(sent_by("ann")) is None


def test_a_login_without_a_quota_has_no_series(metrics: Metrics, clock: Clock) -> None:
    Rates(rules=Rules(quotas={"ann": Quota(jobs=1)}), metrics=metrics, clock=clock).passed_by(sent_by("bob"))
    assert over(metrics, "bob", "jobs") is None


@pytest.mark.slow
def test_of_too_many_logins_the_first_is_forgotten(clock: Clock, metrics: Metrics) -> None:
    limited = rates(clock, metrics, commands_per_s=1.0)
    while limited.passed_by(sent_by("ann")) is None:
        pass
    for number in range(10_000):
        limited.passed_by(sent_by(f"login-{number}"))
    assert over(metrics, "ann", "commands_per_s") is None
    assert limited.passed_by(sent_by("ann")) is None
