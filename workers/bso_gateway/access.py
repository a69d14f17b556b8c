"""Who sends a request: the bearer of a token, which the store of tokens is asked for now and then."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bso.domain.tokens import Token
from bso.service.queries import CheckToken
from bso.service.tokens import digest_of, token_id_of
from bso_gateway.http import HttpError

KNOWN_FOR_S = 30.0
"""A token that was revoked is used for so long at most."""
MOST_FAILURES, WITHIN_S = 10, 60.0
"""Different wrong tokens that one address may show in so long a time; then it has to wait."""
_LONGEST_TURN_S = 2.0  # that an unknown token waits while others of its address are checked
_RETRY_AFTER_S = 1.0
_MOST_KNOWN = 10_000
_WRONG = "the token is not known, has expired, or was revoked (`bso tokens list`)"


@dataclass(frozen=True, slots=True)
class _Known:
    token: Token
    checked_s: float


@dataclass(slots=True)
class _Guesses:
    """The tokens of one address that are not known, by digest: when some were wrong, and which are being checked."""

    failures: OrderedDict[str, float] = field(default_factory=OrderedDict)
    under_way: set[str] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def may_all_be_wrong(self) -> bool:
        """Whether there would be too many failures if all that are being checked were wrong."""
        return bool(self.under_way) and len(self.failures) + len(self.under_way) >= MOST_FAILURES


class Access:
    """Finds out who sends a request. ``check`` asks the optimizer; it raises HttpError where that does not answer."""

    def __init__(
        self,
        check: Callable[[CheckToken], Awaitable[Token | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
        longest_turn_s: float = _LONGEST_TURN_S,
    ) -> None:
        self._check = check
        self._clock = clock
        self._longest_turn_s = longest_turn_s
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Token | None]] = {}
        self._guesses: OrderedDict[str, _Guesses] = OrderedDict()

    async def bearer(self, authorization: str | None, *, client: str) -> Token:
        """The token of an Authorization header: Bearer, or Basic with the token as the password.

        Raises HttpError: 401 without a valid token, 429 after too many wrong ones from the same address, 503 where
        tokens cannot be checked.
        """
        secret = _secret_in(authorization)
        if secret is None:
            raise _unauthorized("this gateway asks for a token: Authorization: Bearer TOKEN (`bso tokens create`)")
        digest = digest_of(secret)
        if digest not in self._known:  # one that was good before is no guess
            if digest in self._failures_of(client):  # nor is one that is sent again
                raise _unauthorized(_WRONG)
            await self._wait_for_turn(digest, client)
        known = self._known.get(digest)
        if known is not None and self._clock() < known.checked_s + KNOWN_FOR_S:
            return known.token
        token = await self._checked(secret, digest, known, client)
        if token is None:
            raise _unauthorized(_WRONG)
        return token

    async def _checked(self, secret: str, digest: str, known: _Known | None, client: str) -> Token | None:
        """What the store says of a token, asked once for all requests that wait for it; None is a failure."""
        token_id = token_id_of(secret)
        if token_id is None:
            self._count_failure(digest, client)
            return None
        task = self._under_way.get(digest)
        if task is None:
            task = asyncio.ensure_future(self._check(CheckToken(token_id=token_id, digest=digest)))
            self._under_way[digest] = task
            task.add_done_callback(lambda _: self._under_way.pop(digest, None))
        if known is None:
            self._count_guess(task, digest, client)
        token = await asyncio.shield(task)
        if token is None and known is not None:
            self._known.pop(digest, None)
            self._count_failure(digest, client)
        if token is not None:
            self._known[digest] = _Known(token, self._clock())
            self._known.move_to_end(digest)
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return token

    async def _wait_for_turn(self, digest: str, client: str) -> None:
        """Wait while as many unknown tokens of an address are checked as may still be wrong. Right ones make room."""
        guesses = self._guesses_of(client)
        if digest in guesses.under_way:
            return
        try:
            async with asyncio.timeout(self._longest_turn_s), guesses.turn:  # only the first in the queue looks
                self._refuse_many_failures(client)
                while guesses.may_all_be_wrong and digest not in guesses.under_way:
                    guesses.ended.clear()
                    await guesses.ended.wait()
                    self._refuse_many_failures(client)
        except TimeoutError as error:
            words = f"{len(guesses.under_way)} other tokens from {client} are being checked"
            raise HttpError(503, words, kind="tokens_not_checked", retry_after_s=_RETRY_AFTER_S) from error

    def _count_guess(self, check: asyncio.Task[Token | None], digest: str, client: str) -> None:
        """Count an unknown token until its check ends, and then if it was wrong, also where its client has gone."""
        guesses = self._guesses_of(client)
        if digest in guesses.under_way:
            return
        guesses.under_way.add(digest)

        def end(_: asyncio.Task[Token | None]) -> None:
            guesses.under_way.discard(digest)
            if not check.cancelled() and check.exception() is None and check.result() is None:
                self._count_failure(digest, client)
            guesses.ended.set()

        check.add_done_callback(end)

    def _refuse_many_failures(self, client: str) -> None:
        failures = self._failures_of(client)
        if len(failures) >= MOST_FAILURES:
            words = f"{len(failures)} wrong tokens came from {client} within {WITHIN_S:g} s"
            wait_s = next(iter(failures.values())) + WITHIN_S - self._clock()
            raise HttpError(429, words, kind="too_many_failures", retry_after_s=wait_s)

    def _failures_of(self, client: str) -> OrderedDict[str, float]:
        failures, since_s = self._guesses_of(client).failures, self._clock() - WITHIN_S
        while failures and next(iter(failures.values())) < since_s:
            failures.popitem(last=False)
        return failures

    def _count_failure(self, digest: str, client: str) -> None:
        failures = self._guesses_of(client).failures
        failures[digest] = self._clock()
        failures.move_to_end(digest)
        if len(failures) > MOST_FAILURES:
            failures.popitem(last=False)
        self._guesses.move_to_end(client)

    def _guesses_of(self, client: str) -> _Guesses:
        guesses = self._guesses.get(client)
        if guesses is None:
            guesses = self._guesses[client] = _Guesses()
            if len(self._guesses) > _MOST_KNOWN:
                self._guesses.popitem(last=False)
        return guesses


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
