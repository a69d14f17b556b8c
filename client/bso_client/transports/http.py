"""The optimizer behind an HTTP gateway (`bso serve`): the same messages as through a broker, as bodies of requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from bso.credentials import shown_address
from bso.domain.commands import Request
from bso.domain.errors import Misconfigured, Rejected, Retryable
from bso.domain.foreign_text import shown
from bso.domain.replies import Problem, Reply
from bso.schema.codec import decode_reply, encode_command
from bso.schema.envelope import MAX_ANSWER_BYTES, PROBLEM_URN
from bso.schema.errors import MalformedMessage, UnsupportedSchema
from bso_client.errors import Unreachable

if TYPE_CHECKING:
    import aiohttp

_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0  # before a command is sent again
_RESEND_AFTER_S = 10.0
_AWAY = (408, 425, 429)
_REFUSED = (401, 403)
_BY_THE_PROXY = 407
_IS_NONE = (301, 302, 303, 307, 308, 404, 405, 421)
_UNDER_WAY = "command_id_taken"  # the command was sent before, as one to be judged at once, and has no reply yet


class GatewayRefuses(Misconfigured):
    """The gateway does not take what this token sends, or there is no gateway at this address."""


class _Away(Retryable):
    """No answer, or one that asks to come back ``after_s`` later."""

    def __init__(self, words: str, *, after_s: float = 0.0) -> None:
        super().__init__(words)
        self.after_s = after_s


class NotTaken(Rejected):
    """A message that the gateway will never take."""


class HttpCaller:
    """Sends messages to a gateway, over connections that are kept; by HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE.

    The token is the password of the address; without one, a login in ~/.netrc is sent. A command without an answer is
    sent again after ``resend_after_s``, in case a connection hangs.
    """

    def __init__(self, url: str, *, resend_after_s: float = _RESEND_AFTER_S) -> None:
        self._resend_after_s = resend_after_s
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self._base = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}/v1"
        self.address: str = shown_address(url)
        self._token = unquote(parts.password or "")
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Get ready; nothing is connected yet. Raises Misconfigured without aiohttp."""
        try:
            import aiohttp
        except ImportError as error:
            raise Misconfigured(
                f"{self.address} needs aiohttp, which is not installed: pip install 'bso-optimizer[http]'"
            ) from error
        self._session = aiohttp.ClientSession(
            headers={"Content-Type": "application/json"},
            trust_env=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(self._with_token,) if self._token else (),
        )

    async def close(self) -> None:
        """Disconnect."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def call(self, message: bytes, *, kind: Literal["commands", "queries"], timeout_s: float) -> bytes:
        """The message that answers a message. It is sent again until an answer comes, or the time is over.

        Raises Unreachable, GatewayRefuses, NotTaken.
        """
        loop = asyncio.get_running_loop()
        deadline, pause_s = loop.time() + timeout_s, _PAUSE_S
        most_s = self._resend_after_s if kind == "commands" else timeout_s
        while True:
            try:
                left_s = max(0.01, deadline - loop.time())
                return await self._once(message, kind, timeout_s=min(left_s, most_s))
            except _Away as error:
                wait_s = max(pause_s, error.after_s)
                if loop.time() + wait_s >= deadline:
                    raise Unreachable(str(error)) from error
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def stream(self, path: str, *, silence_s: float) -> AsyncIterator[bytes]:
        """The lines of a stream of server-sent events, after an empty one when its head has come.

        It ends with the gateway. Raises Unreachable when it breaks off, or is silent for ``silence_s``, GatewayRefuses,
        NotTaken.
        """
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_read=silence_s)
        try:
            with self._in_words():
                asking = self._connected().get(
                    f"{self._base}/{path}",
                    headers={"Accept": "text/event-stream"},
                    allow_redirects=False,
                    timeout=timeout,
                    read_bufsize=MAX_ANSWER_BYTES,
                )
                async with asking as answer:
                    if answer.status != 200:
                        self._check(answer.status, answer.headers.get("Retry-After", ""), await _read(answer))
                    if answer.content_type != "text/event-stream":
                        words = f"{self.address} answers with {answer.content_type[:60]}, where live events come"
                        raise GatewayRefuses(f"{words}: BSO_URL has to be the address of `bso serve`")
                    yield b""
                    async for line in answer.content:
                        yield line
        except _Away as error:
            raise Unreachable(str(error)) from error

    async def _once(self, message: bytes, kind: str, *, timeout_s: float) -> bytes:
        with self._in_words():
            async with asyncio.timeout(timeout_s):
                sending = self._connected().post(f"{self._base}/{kind}", data=message, allow_redirects=False)
                async with sending as answer:
                    body = await _read(answer)
                    self._check(answer.status, answer.headers.get("Retry-After", ""), body)
                    return body

    async def _with_token(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request with the token. A header of the session does not go together with a login in ~/.netrc."""
        request.headers["Authorization"] = f"Bearer {self._token}"
        return await send(request)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise _Away("the connection to the gateway is closed")
        return self._session

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Raise what a failed request means."""
        import aiohttp

        try:
            yield
        except aiohttp.ClientConnectorCertificateError as error:
            words = f"the certificate of {self.address} is not trusted: {error}; SSL_CERT_FILE names other authorities"
            raise GatewayRefuses(words) from error
        except aiohttp.ClientHttpProxyError as error:  # of a tunnel
            if error.status == _BY_THE_PROXY:
                raise self._refused_by_proxy() from error
            raise _Away(f"the proxy on the way to {self.address} answers {error.status}") from error
        except aiohttp.InvalidURL as error:
            raise GatewayRefuses(f"{self.address} is no address: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = str(error) or "no answer"
            if isinstance(error, aiohttp.ServerDisconnectedError) and self.address.startswith("http://"):
                reason += ", without an answer: where this port speaks TLS, the address begins with https://"
            raise _Away(f"the gateway at {self.address} cannot be reached: {reason}") from error

    def _check(self, status: int, retry_after: str, body: bytes) -> None:
        """Raise what a status stands for, unless it is that of an answer."""
        if status == 200:
            return
        if status == _BY_THE_PROXY:
            raise self._refused_by_proxy()
        code, words = _problem_in(body)
        said = f"the gateway at {self.address} answers {status}{f' ({words})' if words else ''}"
        if status in _REFUSED:
            raise GatewayRefuses(f"{said}: BSO_TOKEN, or the password in BSO_URL, has to be a token for this")
        if status in _IS_NONE and code != "unknown_job":
            raise GatewayRefuses(f"{said}: BSO_URL has to be the address of `bso serve`")
        if status >= 500 or status in _AWAY or code == _UNDER_WAY:
            raise _Away(said, after_s=float(retry_after) if retry_after.isdigit() and len(retry_after) < 6 else 0.0)
        if not code:
            raise _Away(f"{said}, and that is no answer of `bso serve`: a proxy on the way may give it")
        raise NotTaken(said)

    def _refused_by_proxy(self) -> GatewayRefuses:
        words = f"the proxy on the way to {self.address} answers {_BY_THE_PROXY}, it asks for a login"
        return GatewayRefuses(f"{words}: HTTP_PROXY or HTTPS_PROXY has to be http://user:password@proxy:port")


class HttpTransport:
    """Sends commands to a gateway."""

    def __init__(self, url: str) -> None:
        self._caller = HttpCaller(url)

    async def start(self) -> None:
        """Get ready; calls connect."""
        await self._caller.start()

    async def call(self, request: Request, *, timeout_s: float) -> Reply:
        """The reply to a command; Unreachable when none came in time."""
        message = encode_command(request, sent_at=datetime.now(UTC))
        try:
            return decode_reply(await self._caller.call(message, kind="commands", timeout_s=timeout_s))
        except NotTaken as error:
            return Problem(type="not_taken", title="The gateway does not take the command", detail=str(error))
        except (MalformedMessage, UnsupportedSchema) as error:
            words = f"{self._caller.address} does not answer as a gateway of this release does ({error})"
            advice = "BSO_URL has to be the address of `bso serve`, and nothing in between may change answers"
            raise Unreachable(f"{words}: {advice}") from error

    async def close(self) -> None:
        """Disconnect."""
        await self._caller.close()


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer. Raises _Away for one that is larger than any of ours."""
    parts: list[bytes] = []
    received = 0
    async for part in answer.content.iter_chunked(65_536):
        received += len(part)
        if received > MAX_ANSWER_BYTES:
            raise _Away(f"the answer has more than {MAX_ANSWER_BYTES} bytes: it is no gateway's")
        parts.append(part)
    return b"".join(parts)


def _problem_in(body: bytes) -> tuple[str, str]:
    """The code of a problem and what it says; no code where it is none of a gateway's, as that of a proxy is."""
    from pydantic_core import from_json

    try:
        found = from_json(body)
    except ValueError:
        return "", ""
    if not isinstance(found, dict):
        return "", ""
    code, detail = str(found.get("code")), found.get("detail")
    is_ours = found.get("type") == f"{PROBLEM_URN}{code}"
    return code if is_ours else "", shown(detail)[:500] if isinstance(detail, str) else ""
