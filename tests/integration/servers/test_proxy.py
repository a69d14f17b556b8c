"""The wire between a client and a server can be cut, stalled and restored."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

import pytest

from tests.servers import TcpProxy, eventually_async

StartProxy = Callable[[str], TcpProxy]


@asynccontextmanager
async def echo_server() -> AsyncIterator[str]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(line)

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield f"echo://somebody@127.0.0.1:{server.sockets[0].getsockname()[1]}/path"


@asynccontextmanager
async def connection_to(proxy: TcpProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_bytes_pass_and_the_url_keeps_login_and_path(tcp_proxy: StartProxy) -> None:
    async with echo_server() as url:
        proxy = tcp_proxy(url)
        assert proxy.url == f"echo://somebody@127.0.0.1:{proxy.port}/path"
        async with connection_to(proxy) as (reader, writer):
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"


async def test_a_cut_ends_connections_and_new_ones_until_restored(tcp_proxy: StartProxy) -> None:
    async with echo_server() as url:
        proxy = tcp_proxy(url)
        async with connection_to(proxy) as (reader, writer):
            writer.write(b"hello\n")
            await reader.readline()
            proxy.cut()
            assert await ended(reader)
            assert proxy.connections == 0
        async with connection_to(proxy) as (reader, writer):
            assert await ended(reader)
        proxy.restore()
        async with connection_to(proxy) as (reader, writer):
            writer.write(b"again\n")
            assert await reader.readline() == b"again\n"


@pytest.mark.parametrize("stall", [TcpProxy.stall, TcpProxy.stall_requests, TcpProxy.stall_replies])
async def test_a_stalled_wire_keeps_everything_until_restored(
    tcp_proxy: StartProxy, stall: Callable[[TcpProxy], None]
) -> None:
    async with echo_server() as url:
        proxy = tcp_proxy(url)
        async with connection_to(proxy) as (reader, writer):
            await eventually_async(lambda: proxy.connections == 1)
            stall(proxy)
            writer.write(b"held\n")
            answer = asyncio.ensure_future(reader.readline())
            await eventually_async(lambda: proxy.is_holding)
            assert not answer.done()
            proxy.restore()
            assert await answer == b"held\n"


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
