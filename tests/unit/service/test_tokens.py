"""Secrets, and what tokens are for."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from bso.domain.rights import Right
from bso.domain.tokens import Token, token_problems
from bso.service.tokens import digest_of, is_same, new_secret, token_id_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = Token(token_id="0123456789ab", user="vision", right=Right.TRAIN, jobs="vision-*", created_at=NOW)


def test_a_secret_names_its_token_and_only_a_digest_of_it_is_kept() -> None:
    token_id, secret = new_secret(os.urandom)
    assert token_id_of(secret) == token_id
    assert len(secret) >= 50
    assert is_same(digest_of(secret), digest_of(secret))
    assert not is_same(digest_of(secret), digest_of(secret + "x"))
    assert secret not in digest_of(secret)


@pytest.mark.parametrize("text", ["", "bso_", "bso_0123456789ab_short", "BSO_0123456789ab_" + "x" * 43, "x" * 1000])
def test_what_is_no_secret(text: str) -> None:
    assert token_id_of(text) is None


@pytest.mark.parametrize(
    ("right", "job_id", "is_covered"),
    [
        (Right.READ, "vision-resnet", True),
        (Right.TRAIN, "vision-resnet", True),
        (Right.OPERATE, "vision-resnet", False),
        (None, "vision-resnet", False),
        (Right.TRAIN, "speech-1", False),
        (Right.TRAIN, "VISION-1", False),
        (Right.READ, None, True),
    ],
)
def test_what_a_token_is_for(right: Right | None, job_id: str | None, is_covered: bool) -> None:
    assert TOKEN.covers(right, job_id) is is_covered


def test_how_long_it_is_valid() -> None:
    import dataclasses

    assert TOKEN.why_invalid(NOW) is None
    expiring = dataclasses.replace(TOKEN, expires_at=NOW + timedelta(hours=1))
    assert expiring.why_invalid(NOW) is None
    assert "has expired" in str(expiring.why_invalid(NOW + timedelta(hours=1)))
    assert "was revoked" in str(dataclasses.replace(TOKEN, revoked_at=NOW).why_invalid(NOW))


@pytest.mark.parametrize(
    ("user", "jobs", "fields"),
    [
        ("", "*", ["name"]),
        ("a\x1b", "", ["name", "jobs"]),
        ("a", "b", []),
        ("a", "v?[1-3]_*[!z]", []),
        ("a", "[", ["jobs"]),
        ("a", "vision *", ["jobs"]),
        ("a", "[]", ["jobs"]),
    ],
)
def test_what_no_token_can_be(user: str, jobs: str, fields: list[str]) -> None:
    assert list(token_problems(user, jobs)) == fields
