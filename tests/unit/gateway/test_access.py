"""Who sends a request: tokens in headers, how long they are known, and too many wrong ones."""

import asyncio
import base64
import os
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from bso.domain.rights import Right
from bso.domain.tokens import Token
from bso.service.queries import CheckToken
from bso.service.tokens import digest_of, new_secret
from bso_gateway.access import KNOWN_FOR_S, MOST_FAILURES, WITHIN_S, Access
from bso_gateway.http import HttpError
from tests.servers import eventually_async

TOKEN_ID, SECRET = new_secret(lambda count: bytes(range(count)))  # the same in every process of the tests
TOKEN = Token(
    token_id=TOKEN_ID, user="vision", right=Right.TRAIN, jobs="*", created_at=datetime(2026, 1, 1, tzinfo=UTC)
)


class Store:
    """Knows one token and those added, and counts how often it is asked; its clock stands until it is moved."""

    def __init__(self) -> None:
        self.asked = 0
        self.valid = {(TOKEN_ID, digest_of(SECRET))}
        self.answers = asyncio.Event()
        self.answers.set()
        self.is_revoked = self.is_away = False
        self.now_s = 0.0

    async def check(self, query: CheckToken) -> Token | None:
        self.asked += 1
        await self.answers.wait()
        if self.is_away:
            raise HttpError(503, "away")
        is_it = (query.token_id, query.digest) in self.valid
        return TOKEN if is_it and not self.is_revoked else None

    def another(self) -> str:
        """The secret of another token that it knows."""
        token_id, secret = new_secret(os.urandom)
        self.valid.add((token_id, digest_of(secret)))
        return secret

    def clock(self) -> float:
        return self.now_s


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def access(store: Store) -> Access:
    return Access(store.check, clock=store.clock)


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    "header", [f"Bearer {SECRET}", f"bearer  {SECRET} ", basic(f"anybody:{SECRET}"), basic(f":{SECRET}")]
)
async def test_a_token_is_a_bearers_or_a_password(access: Access, header: str) -> None:
    assert await access.bearer(header, client="a") == TOKEN


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Basic \xe9",
        f"Digest {SECRET}",
        "Basic ?",
        "Basic /w==",
        basic("anybody"),
        f"Bearer {SECRET}x",
        "Bearer x",
    ],
)
async def test_anything_else_is_refused(access: Access, header: str | None) -> None:
    with pytest.raises(HttpError) as refused:
        await access.bearer(header, client="a")
    assert refused.value.status == 401
    assert refused.value.headers["WWW-Authenticate"] == "Bearer"


async def test_the_store_is_asked_once_in_a_while(access: Access, store: Store) -> None:
    for _ in range(5):
        await access.bearer(f"Bearer {SECRET}", client="a")
    assert store.asked == 1
    store.is_revoked = True
    await access.bearer(f"Bearer {SECRET}", client="a")
    store.now_s += KNOWN_FOR_S
    with pytest.raises(HttpError):
        await access.bearer(f"Bearer {SECRET}", client="a")


async def test_requests_at_once_ask_once(access: Access, store: Store) -> None:
    found = await asyncio.gather(*(access.bearer(f"Bearer {SECRET}", client="a") for _ in range(20)))
    assert found == [TOKEN] * 20
    assert store.asked == 1


async def test_a_known_token_is_known_for_no_longer_where_the_store_does_not_answer(
    access: Access, store: Store
) -> None:
    await access.bearer(f"Bearer {SECRET}", client="a")
    store.is_away = True
    store.now_s += KNOWN_FOR_S - 1
    assert await access.bearer(f"Bearer {SECRET}", client="a") == TOKEN
    store.now_s += 1
    with pytest.raises(HttpError) as refused:
        await access.bearer(f"Bearer {SECRET}", client="a")
    assert refused.value.status == 503
    store.is_away = False
    assert await access.bearer(f"Bearer {SECRET}", client="a") == TOKEN


async def test_a_token_that_was_good_is_no_guess(access: Access) -> None:
    await access.bearer(f"Bearer {SECRET}", client="mallory")
    for _ in range(MOST_FAILURES):
        with pytest.raises(HttpError):
            await access.bearer(f"Bearer {new_secret(os.urandom)[1]}", client="mallory")
    assert await access.bearer(f"Bearer {SECRET}", client="mallory") == TOKEN


async def test_who_guesses_has_to_wait_and_others_have_not(access: Access, store: Store) -> None:
    for _ in range(MOST_FAILURES):
        with pytest.raises(HttpError) as refused:
            await access.bearer(f"Bearer {new_secret(os.urandom)[1]}", client="mallory")
        assert refused.value.status == 401
    asked = store.asked
    with pytest.raises(HttpError) as refused:
        await access.bearer(f"Bearer {SECRET}", client="mallory")
    assert refused.value.status == 429
    assert refused.value.headers["Retry-After"] == str(int(WITHIN_S))
    assert store.asked == asked
    assert await access.bearer(f"Bearer {SECRET}", client="alice") == TOKEN
    store.now_s += WITHIN_S + 1
    assert await access.bearer(f"Bearer {SECRET}", client="mallory") == TOKEN


async def test_a_wrong_token_that_is_sent_again_and_again_is_one_guess(access: Access, store: Store) -> None:
    [stale] = wrong(1)
    for secret in (stale, "not even shaped like one"):
        for _ in range(2 * MOST_FAILURES):
            assert await statuses(access, [secret, secret]) == {401: 2}
    assert store.asked == 1
    store.is_revoked = True
    assert await statuses(access, [SECRET]) == {401: 1}
    store.is_revoked = False
    assert await statuses(access, [SECRET]) == {401: 1}
    assert await statuses(access, [store.another()]) == {200: 1}
    store.now_s += WITHIN_S + 1
    assert await statuses(access, [SECRET]) == {200: 1}


async def test_a_request_without_a_token_is_no_guess(access: Access) -> None:
    for _ in range(2 * MOST_FAILURES):
        with pytest.raises(HttpError) as refused:
            await access.bearer(None, client="a")
        assert refused.value.status == 401
    assert await access.bearer(f"Bearer {SECRET}", client="a") == TOKEN


async def statuses(access: Access, secrets: Iterable[str], *, client: str = "mallory") -> Counter[int]:
    """What requests at once are answered with; 200: a token was found."""
    asking = (access.bearer(f"Bearer {secret}", client=client) for secret in secrets)
    answers = await asyncio.gather(*asking, return_exceptions=True)
    return Counter(answer.status if isinstance(answer, HttpError) else 200 for answer in answers)


def wrong(count: int) -> list[str]:
    return [new_secret(os.urandom)[1] for _ in range(count)]


async def test_who_guesses_many_at_once_has_no_more_guesses(access: Access, store: Store) -> None:
    assert await statuses(access, wrong(400)) == {401: MOST_FAILURES, 429: 400 - MOST_FAILURES}
    assert store.asked == MOST_FAILURES
    assert await statuses(access, [SECRET]) == {429: 1}
    assert await statuses(access, [SECRET], client="alice") == {200: 1}


async def test_many_right_tokens_at_once_are_no_guesses(access: Access, store: Store) -> None:
    secrets = [store.another() for _ in range(400)]
    assert await statuses(access, [*secrets, *secrets]) == {200: 800}
    assert store.asked == 400
    some_wrong = wrong(MOST_FAILURES - 1)
    assert await statuses(access, [*some_wrong, *(store.another() for _ in range(50))]) == {200: 50, 401: 9}


async def test_a_known_token_waits_for_no_check_of_others(access: Access, store: Store) -> None:
    await access.bearer(f"Bearer {SECRET}", client="mallory")
    store.answers.clear()
    guessing = asyncio.create_task(statuses(access, wrong(2 * MOST_FAILURES)))
    await eventually_async(lambda: store.asked == 1 + MOST_FAILURES)
    assert await access.bearer(f"Bearer {SECRET}", client="mallory") == TOKEN
    store.answers.set()
    assert await guessing == {401: MOST_FAILURES, 429: MOST_FAILURES}


async def test_a_guess_counts_also_where_its_client_has_gone(access: Access, store: Store) -> None:
    store.answers.clear()
    guessing = [asyncio.create_task(access.bearer(f"Bearer {each}", client="mallory")) for each in wrong(MOST_FAILURES)]
    await eventually_async(lambda: store.asked == MOST_FAILURES)
    for each in guessing:
        each.cancel()
    await asyncio.wait(guessing)
    store.answers.set()
    assert await statuses(access, [SECRET]) == {429: 1}


async def test_an_unknown_token_waits_for_so_long_and_no_longer(store: Store) -> None:
    access = Access(store.check, clock=store.clock, longest_turn_s=0.01)
    store.answers.clear()
    guessing = asyncio.create_task(statuses(access, wrong(MOST_FAILURES)))
    await eventually_async(lambda: store.asked == MOST_FAILURES)
    assert await statuses(access, [SECRET]) == {503: 1}
    store.answers.set()
    assert await guessing == {401: MOST_FAILURES}


async def test_a_store_that_does_not_answer_makes_nobody_a_guesser(access: Access, store: Store) -> None:
    store.is_away = True
    assert await statuses(access, wrong(2 * MOST_FAILURES)) == {503: 2 * MOST_FAILURES}
    store.is_away = False
    assert await statuses(access, [SECRET]) == {200: 1}
