"""The secrets of tokens, and tokens in memory. A store keeps a secret's digest alone.

A secret has 256 random bits, so a fast hash (SHA-256) keeps it: there is nothing to guess.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from datetime import datetime

from bso.domain.frozen_values import replace
from bso.domain.tokens import Token

_SECRET = re.compile(r"bso_([0-9a-f]{12})_[0-9A-Za-z_-]{43}")
USED_EVERY_S = 60.0
"""How exactly it is known when a token was used last."""


def new_secret(draw: Callable[[int], bytes]) -> tuple[str, str]:
    """A token_id and a secret that holds it; ``draw`` gives so many random bytes, which nobody can guess."""
    token_id = draw(6).hex()
    return token_id, f"bso_{token_id}_{base64.urlsafe_b64encode(draw(32)).decode().rstrip('=')}"


def token_id_of(secret: str) -> str | None:
    """The token_id in a secret; None: it is none."""
    found = _SECRET.fullmatch(secret)
    return None if found is None else found[1]


def digest_of(secret: str) -> str:
    """What is kept of a secret: 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_same(one: str, other: str) -> bool:
    """Whether two digests are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one, other)


class InMemoryTokens:
    """Tokens by their ids. ``clock`` gives the time, in UTC."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._tokens: dict[str, tuple[Token, str]] = {}

    async def create(self, token: Token, digest: str) -> None:
        """Keep a new token."""
        self._tokens[token.token_id] = (token, digest)

    async def all(self) -> Sequence[Token]:
        """All tokens, the oldest first."""
        return sorted((token for token, _ in self._tokens.values()), key=lambda one: one.created_at)

    async def find(self, token_id: str) -> tuple[Token, str] | None:
        """A token and its digest."""
        return self._tokens.get(token_id)

    async def change(self, token: Token) -> None:
        """Keep when a token expires, or was revoked."""
        self._tokens[token.token_id] = (token, self._tokens[token.token_id][1])

    async def used(self, token_id: str) -> None:
        """Record that a token was used just now."""
        token, digest = self._tokens[token_id]
        self._tokens[token_id] = (replace(token, last_used_at=self._clock()), digest)

    async def now(self) -> datetime:
        """The store's clock."""
        return self._clock()
