"""A TCP proxy that can cut, stall and restore the wire between a client and a server."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.servers.waiting import PATIENCE_S

T = TypeVar("T")

Watch = Callable[[bool], Callable[[bytes], None]]
"""Called for each direction of each connection, with whether it is that of requests; what it returns gets the bytes."""


class TcpProxy:
    """Forwards connections from a free port of 127.0.0.1 to the server of a URL.

    It runs in a thread of its own, so synchronous and asynchronous tests use it alike: each method has taken effect
    when it returns, within milliseconds.
    """

    def __init__(self, url: str, default_port: int | None = None, *, watch: Watch | None = None) -> None:
        parts = urlsplit(url)
        port = parts.port or default_port
        if parts.hostname is None or port is None:
            raise ValueError(f"expected a URL with host and port, got {url}")
        self._watch = watch
        self._parts = parts
        self._target = (parts.hostname, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._pipes: set[_Pipe] = set()
        self._refuses = False
        self._requests_flow = asyncio.Event()
        self._replies_flow = asyncio.Event()
        self._held = 0
        self._last_request = b""
        self.requests = 0
        """How many packets have come from clients; a request is one, unless it is large."""
        self.replaces: tuple[bytes, bytes] | None = None
        """What is forwarded as something else of the same length."""
        self._delay_s = 0.0
        self.port = 0

    @property
    def url(self) -> str:
        """The server's URL, led through the proxy."""
        login = self._parts.netloc.rpartition("@")[0]
        address = f"{login}@127.0.0.1:{self.port}" if login else f"127.0.0.1:{self.port}"
        return urlunsplit(self._parts._replace(netloc=address))

    @property
    def connections(self) -> int:
        """How many connections are open through the proxy."""
        return len(self._pipes)

    @property
    def is_holding(self) -> bool:
        """Whether something has arrived that is held until restore()."""
        return self._held > 0

    def start(self) -> Self:
        """Listen, and forward everything."""
        self._thread.start()
        self._in_loop(self._listen())
        return self

    def close(self) -> None:
        """Close every connection and stop listening."""
        if not self._thread.is_alive():
            return
        self._in_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def drop(self) -> None:
        """Close the connections that exist; new ones are served."""
        self._in_loop(self._abort_all())

    def cut(self) -> None:
        """Close the connections that exist and close new ones at once, until restore()."""
        self._refuses = True
        self.drop()

    def stall(self) -> None:
        """Forward nothing in either direction, old connections and new, until restore(): a network that swallows."""
        self._in_loop(self._set_flow(requests=False, replies=False))

    def stall_requests(self) -> None:
        """Hold what the client sends, until restore()."""
        self._in_loop(self._set_flow(requests=False, replies=True))

    def stall_replies(self) -> None:
        """Hold what the server sends while requests reach it, until restore(): a lost confirm, an unknown outcome."""
        self._in_loop(self._set_flow(requests=True, replies=False))

    def stall_replies_after(self, request: bytes) -> None:
        """Hold what the server sends once a request with these bytes has reached it, until restore()."""
        self._last_request = request

    def delay(self, seconds: float) -> None:
        """Let everything take so long in each direction, until restore()."""
        self._delay_s = seconds

    def restore(self) -> None:
        """Serve again: what was held flows on, in order."""
        self._refuses = False
        self._delay_s = 0.0
        self._last_request = b""
        self._in_loop(self._set_flow(requests=True, replies=True))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    async def _listen(self) -> None:
        await self._set_flow(requests=True, replies=True)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._refuses = True
        self._server.close()
        await self._abort_all()
        await self._set_flow(requests=True, replies=True)
        while self._pipes:
            await asyncio.gather(*(pipe.closed.wait() for pipe in self._pipes))

    async def _set_flow(self, *, requests: bool, replies: bool) -> None:
        for event, flows in ((self._requests_flow, requests), (self._replies_flow, replies)):
            if flows:
                event.set()
            else:
                event.clear()

    async def _abort_all(self) -> None:
        for pipe in list(self._pipes):
            pipe.abort()
        await asyncio.gather(*(pipe.closed.wait() for pipe in list(self._pipes)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pipe = _Pipe(writer, server_writer)
        self._pipes.add(pipe)
        try:
            await pipe.run(
                self._pump(reader, server_writer, self._requests_flow),
                self._pump(server_reader, writer, self._replies_flow),
            )
        finally:
            self._pipes.discard(pipe)
            pipe.closed.set()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
        late: deque[tuple[float, bytes]] = deque()  # what is on its way, and when it arrives
        pouring: asyncio.Task[None] | None = None
        seen = self._watch(flow is self._requests_flow) if self._watch else None
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if seen:
                    seen(chunk)
                self.requests += flow is self._requests_flow
                chunk = chunk.replace(*self.replaces) if self.replaces else chunk
                if self._last_request and self._last_request in chunk:
                    self._replies_flow.clear()
                self._held += 1
                try:
                    await flow.wait()
                finally:
                    self._held -= 1
                if self._delay_s or late:
                    late.append((self._loop.time() + self._delay_s, chunk))
                    if pouring is None or pouring.done():
                        pouring = asyncio.ensure_future(self._pour(late, writer))
                    continue
                writer.write(chunk)
                await writer.drain()
        await flow.wait()  # a network that swallows also swallows that one end has gone
        if pouring is not None:
            await pouring

    async def _pour(self, late: deque[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while late:
                arrives_s, chunk = late[0]
                await asyncio.sleep(max(0.0, arrives_s - self._loop.time()))  # noqa: TID251  a long way
                writer.write(chunk)
                await writer.drain()
                late.popleft()


class _Pipe:
    """One client's connection and the one to the server that belongs to it; both end together."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._writers = (client, server)
        self._tasks: list[asyncio.Task[None]] = []
        self.closed = asyncio.Event()

    async def run(self, *pumps: Coroutine[Any, Any, None]) -> None:
        self._tasks = [asyncio.ensure_future(pump) for pump in pumps]
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        self.abort()
        await asyncio.wait(self._tasks)

    def abort(self) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
