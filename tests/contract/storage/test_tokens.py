"""Tokens: what every store must keep of them, and what checking one finds."""

from dataclasses import replace
from datetime import timedelta

from bso.domain.rights import Right
from bso.domain.tokens import Token
from bso.service.ports import Store
from bso.service.queries import CheckToken
from bso.service.query_answers import checked
from bso.service.tokens import digest_of


async def created(store: Store, secret: str, *, user: str = "alice", **more: object) -> Token:
    now = await store.tokens.now()
    token = Token(token_id=digest_of(secret)[:12], user=user, right=Right.TRAIN, jobs="vision-*", created_at=now)
    token = replace(token, **more)  # type: ignore[arg-type]  # fields of a token
    await store.tokens.create(token, digest_of(secret))
    return token


def shown(secret: str, token: Token) -> CheckToken:
    return CheckToken(token_id=token.token_id, digest=digest_of(secret))


async def test_a_token_is_kept_as_it_was_made(store: Store) -> None:
    ends = await store.tokens.now() + timedelta(days=90)
    one = await created(store, "one", user="Jos\u00e9 'x'", expires_at=ends)
    other = await created(store, "other")
    assert await store.tokens.find(one.token_id) == (one, digest_of("one"))
    assert list(await store.tokens.all()) == [one, other]
    assert await store.tokens.find("0" * 12) is None


async def test_only_the_right_secret_opens(store: Store) -> None:
    token = await created(store, "secret")
    found = await checked(store.tokens, shown("secret", token))
    assert found is not None
    assert found.token_id == token.token_id
    assert await checked(store.tokens, shown("another", token)) is None


async def test_a_use_is_recorded_and_not_again_within_a_minute(store: Store) -> None:
    token = await created(store, "secret")
    await checked(store.tokens, shown("secret", token))
    [used] = await store.tokens.all()
    assert used.last_used_at is not None
    await checked(store.tokens, shown("secret", token))
    assert list(await store.tokens.all()) == [used]


async def test_one_that_was_revoked_or_has_expired_opens_nothing(store: Store) -> None:
    now = await store.tokens.now()
    await created(store, "expired", expires_at=now)
    for secret in ("expired", "revoked"):
        token = (await store.tokens.find(digest_of(secret)[:12]) or (await created(store, secret), ""))[0]
        if secret == "revoked":
            assert await checked(store.tokens, shown(secret, token)) is not None
            await store.tokens.change(replace(token, revoked_at=now))
        assert await checked(store.tokens, shown(secret, token)) is None
