"""Who sends a request: the bearer of a token, which the store of tokens is asked for now and then."""

from __future__ import annotations

import base64
import binascii
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable

from bso.domain.tokens import Token
from bso.service.queries import CheckToken
from bso.service.tokens import digest_of, token_id_of
from bso_gateway.http import HttpError

KNOWN_FOR_S = 30.0
"""A token that was revoked is used for so long at most."""
MOST_FAILURES, WITHIN_S = 10, 60.0
"""Wrong tokens that one address may show in so long a time; then it has to wait."""
_MOST_KNOWN = 10_000


class Access:
    """Finds out who sends a request. ``check`` asks the optimizer; it raises HttpError where that does not answer."""

    def __init__(
        self, check: Callable[[CheckToken], Awaitable[Token | None]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._clock = clock
        self._known: dict[str, tuple[Token, float]] = {}
        self._failures: defaultdict[str, deque[float]] = defaultdict(deque)

    async def bearer(self, authorization: str | None, *, client: str) -> Token:
        """The token of an Authorization header: Bearer, or Basic with the token as the password.

        Raises HttpError: 401 without a valid token, 429 after too many wrong ones from the same address.
        """
        secret = _secret_in(authorization)
        if secret is None:
            raise _unauthorized("this gateway asks for a token: Authorization: Bearer TOKEN (`bso tokens create`)")
        digest, now_s = digest_of(secret), self._clock()
        token, until_s = self._known.get(digest, (None, 0.0))
        if token is not None and now_s < until_s:
            return token
        self._known.pop(digest, None)
        self._refuse_many_failures(client, now_s)
        token_id = token_id_of(secret)
        token = None if token_id is None else await self._check(CheckToken(token_id=token_id, digest=digest))
        if token is None:
            self._failures[client].append(now_s)
            raise _unauthorized("the token is not known, has expired, or was revoked (`bso tokens list`)")
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[digest] = (token, now_s + KNOWN_FOR_S)
        return token

    def _refuse_many_failures(self, client: str, now_s: float) -> None:
        failures = self._failures[client]
        while failures and failures[0] < now_s - WITHIN_S:
            failures.popleft()
        if not failures:
            del self._failures[client]
        elif len(failures) >= MOST_FAILURES:
            words = f"{len(failures)} wrong tokens came from {client} within {WITHIN_S:g} s"
            wait_s = failures[0] + WITHIN_S - now_s
            raise HttpError(429, words, kind="too_many_failures", retry_after_s=wait_s)


def _secret_in(authorization: str | None) -> str | None:
    scheme, _, rest = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


def _unauthorized(words: str) -> HttpError:
    return HttpError(401, words, kind="unauthorized", title="Who sends this is not known")
