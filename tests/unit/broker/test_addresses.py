"""Names of reply queues, and keys and patterns of events."""

from urllib.parse import unquote

import pytest

from bso_broker.addresses import (
    event_pattern,
    is_reply_address,
    new_event_queue,
    new_reply_queue,
    reply_id,
    routing_key,
)
from tests.fakes.memory_broker.events import pattern_matches


@pytest.mark.parametrize("job_id", ["mnist-nightly", "team.a.model", "a_b+c:d", "100%", "a*b#c", "ünï/cøde"])
def test_type_and_job_can_be_read_back_from_a_key(job_id: str) -> None:
    key = routing_key("trial_started", job_id)
    assert [unquote(word) for word in key.split(".")] == ["trial_started", job_id]


def test_dots_of_a_job_id_are_percent_encoded() -> None:
    assert routing_key("trial_started", "team.a") == "trial_started.team%2Ea"


def test_a_key_that_would_be_too_long_is_shortened_alike_for_publisher_and_subscriber() -> None:
    job_id = "a" + "." * 119
    key = routing_key("job_respecified", job_id)
    assert len(key) <= 255
    assert pattern_matches(event_pattern(job_id=job_id), key)


def test_a_reply_to_nobody_fits_into_a_message_whatever_it_answers() -> None:
    assert reply_id("1", "alice") == "1"
    assert reply_id(None, "alice") == ""
    assert reply_id(None, None) == "anonymous."
    assert reply_id("é" * 127, None) == "anonymous." + "é" * 122


def test_a_new_reply_queue_is_a_reply_address_of_its_user_alone() -> None:
    queue = new_reply_queue("alice")
    assert is_reply_address(queue, "alice")
    assert is_reply_address(queue, None)
    assert not is_reply_address(queue, "bob")
    assert queue != new_reply_queue("alice")


def test_no_user_name_can_reach_into_anothers_queues() -> None:
    assert not is_reply_address(new_reply_queue("alice.bob"), "alice")
    assert is_reply_address(new_reply_queue("alice.bob"), "alice.bob")


def test_the_queue_of_a_subscriber_is_no_reply_address() -> None:
    assert not is_reply_address(new_event_queue("alice"), "alice")


@pytest.mark.parametrize("name", [None, "", "bso.commands", "bso.reply.alice.1", f"bso.reply.alice.{'0' * 32}\n"])
def test_other_names_are_no_reply_addresses(name: str | None) -> None:
    assert not is_reply_address(name, None)


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("*.job", "trial_started.job", True),
        ("*.job", "trial_started.other", False),
        ("trial_started.*", "trial_started.job", True),
        ("#", "trial_started.job", True),
        ("trial_started.#", "trial_started", True),
        ("*", "trial_started.job", False),
        ("*.job", "trial_startedxjob", False),
    ],
)
def test_patterns_match_as_those_of_a_topic_exchange(pattern: str, key: str, matches: bool) -> None:
    assert pattern_matches(pattern, key) is matches
