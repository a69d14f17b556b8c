"""Who opens a page: a browser has no header to show a token in, so a cookie holds what it was let in with."""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import parse_qs

from starlette.requests import Request

from bso.domain.tokens import Token
from bso_gateway.access import Access
from bso_gateway.http import BEARER, Gate, HttpError

KEY = "key"
"""The parameter of an address that holds a one-time key."""
_MOST_SESSIONS = 100


class Door(Protocol):
    """Lets browsers in. A gateway has one of these. ``cookie`` is the name of the cookie that holds a session."""

    asks_for_token: bool
    cookie: str

    async def admit(self, session: str | None, *, client: str) -> Token | None:
        """Whose session a cookie is; None: one of somebody who may do everything. Raises HttpError, 401 mostly."""
        ...

    async def open(self, secret: str, *, client: str) -> str:
        """A new session for a token or a key. Raises HttpError."""
        ...


class TokenDoor:
    """A session is a token: any gateway of a team knows it, and a revoked one opens nothing any more."""

    asks_for_token = True
    cookie = "bso_session"

    def __init__(self, access: Access) -> None:
        self._access = access

    async def admit(self, session: str | None, *, client: str) -> Token:
        """The token of a session."""
        if session is None:
            raise HttpError(401, "log in with a token first", kind="no_session", title="You are not logged in")
        return await self._access.bearer(f"Bearer {session}", client=client)

    async def open(self, secret: str, *, client: str) -> str:
        """The token itself, once it is found to be valid."""
        await self._access.bearer(f"Bearer {secret}", client=client)
        return secret


class KeyDoor:
    """For the one who started the process, and no other user of the machine: a key in an address that it logs.

    Each key opens once; ``show`` is called with the next one. The cookie has a name of its own, since browsers send it
    to all ports of a machine.
    """

    asks_for_token = False

    def __init__(self, *, show: Callable[[str], None]) -> None:
        self.cookie = f"bso_session_{secrets.token_hex(4)}"
        self._show = show
        self._key = secrets.token_urlsafe(24)
        self._sessions: OrderedDict[str, None] = OrderedDict()

    def show_key(self) -> None:
        """Show the key that opens next."""
        self._show(self._key)

    async def admit(self, session: str | None, *, client: str) -> None:
        """Whether a session is one of those that were opened here."""
        if session not in self._sessions:
            words = "open the address that `bso dashboard` or `bso serve` has printed last: it holds a key for one use"
            raise HttpError(401, words, kind="no_session", title="This browser has not been let in")

    async def open(self, secret: str, *, client: str) -> str:
        """A new session; the next key is shown, for another browser."""
        if not hmac.compare_digest(secret.encode(), self._key.encode()):
            words = "the key has been used, or is not this process' own: open the address that was printed last"
            raise HttpError(401, words, kind="wrong_key", title="This key opens nothing")
        self._key = secrets.token_urlsafe(24)
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        self.show_key()
        return session


async def admit(request: Request, door: Door) -> None:
    """Find out who looks. Raises HttpError 401."""
    request.scope[BEARER] = await door.admit(request.cookies.get(door.cookie), client=client_of(request))


async def form_of(request: Request, gate: Gate) -> Mapping[str, str]:
    """The fields of a form, the first of several of a name."""
    fields = parse_qs((await gate.body(request)).decode(errors="replace"))
    return {name: values[0] for name, values in fields.items()}


def client_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else "an unknown address"
