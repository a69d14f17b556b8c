"""Who sends a request: the bearer of a token, which the store of tokens is asked for now and then."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bso.domain.tokens import Token
from bso.service.queries import CheckToken
from bso.service.tokens import digest_of, token_id_of
from bso_gateway.http import HttpError

KNOWN_FOR_S = 30.0
"""A token that was revoked is used for so long at most, while the store of tokens answers."""
GRACE_S = 60.0
"""And for so much longer, while it does not."""
MOST_FAILURES, WITHIN_S = 10, 60.0
"""Wrong tokens that one address may show in so long a time; then it has to wait."""
_MOST_KNOWN = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    token: Token
    checked_s: float


class Access:
    """Finds out who sends a request. ``check`` asks the optimizer; it raises HttpError where that does not answer."""

    def __init__(
        self, check: Callable[[CheckToken], Awaitable[Token | None]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Token | None]] = {}
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    async def bearer(self, authorization: str | None, *, client: str) -> Token:
        """The token of an Authorization header: Bearer, or Basic with the token as the password.

        Raises HttpError: 401 without a valid token, 429 after too many wrong ones from the same address.
        """
        secret = _secret_in(authorization)
        if secret is None:
            raise _unauthorized("this gateway asks for a token: Authorization: Bearer TOKEN (`bso tokens create`)")
        digest = digest_of(secret)
        known = self._known.get(digest)
        if known is not None and self._clock() < known.checked_s + KNOWN_FOR_S:
            return known.token
        if known is None:  # one that was good before is no guess
            self._refuse_many_failures(client)
        token = await self._checked(secret, digest, known)
        if token is None:
            self._known.pop(digest, None)
            self._count_failure(client)
            raise _unauthorized("the token is not known, has expired, or was revoked (`bso tokens list`)")
        return token

    async def _checked(self, secret: str, digest: str, known: _Known | None) -> Token | None:
        """What the store says of a token, asked once for all requests that wait for it."""
        token_id = token_id_of(secret)
        if token_id is None:
            return None
        task = self._under_way.get(digest)
        if task is None:
            task = asyncio.ensure_future(self._check(CheckToken(token_id=token_id, digest=digest)))
            self._under_way[digest] = task
            task.add_done_callback(lambda _: self._under_way.pop(digest, None))
        try:
            token = await asyncio.shield(task)
        except HttpError:
            if known is None or self._clock() >= known.checked_s + KNOWN_FOR_S + GRACE_S:
                raise
            return known.token
        if token is not None:
            self._known[digest] = _Known(token, self._clock())
            self._known.move_to_end(digest)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return token

    def _refuse_many_failures(self, client: str) -> None:
        failures, now_s = self._failures.get(client, deque()), self._clock()
        while failures and failures[0] < now_s - WITHIN_S:
            failures.popleft()
        if len(failures) >= MOST_FAILURES:
            words = f"{len(failures)} wrong tokens came from {client} within {WITHIN_S:g} s"
            wait_s = failures[0] + WITHIN_S - now_s
            raise HttpError(429, words, kind="too_many_failures", retry_after_s=wait_s)

    def _count_failure(self, client: str) -> None:
        self._failures.setdefault(client, deque(maxlen=MOST_FAILURES)).append(self._clock())
        self._failures.move_to_end(client)
        if len(self._failures) > _MOST_KNOWN:
            self._failures.popitem(last=False)


def _secret_in(authorization: str | None) -> str | None:
    scheme, _, rest = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
    except ValueError:  # no base64, or no UTF-8
        return None


def _unauthorized(words: str) -> HttpError:
    return HttpError(401, words, kind="unauthorized", title="Who sends this is not known")
