"""What is used of uvicorn beside its documentation: a release that has it otherwise is named here, not by users."""

import asyncio
from unittest.mock import Mock

import httptools
import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState


async def test_uvicorn_has_what_connections_are_bounded_by() -> None:
    config = uvicorn.Config(Mock(), http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    protocol = HttpToolsProtocol(config=config, server_state=state, app_state={})
    protocol.connection_made(Mock(spec=asyncio.Transport))
    assert protocol in state.connections is protocol.connections
    assert len(protocol.pipeline) == 0
    at_first: object = protocol.cycle, protocol.timeout_keep_alive_task
    assert at_first == (None, None)
    assert protocol.parser is not None
    protocol.on_message_begin()
    protocol.on_url(b"/livez")
    protocol.on_header(b"Host", b"localhost")
    assert (protocol.url, protocol.headers) == (b"/livez", [(b"host", b"localhost")])
    assert protocol.scope["headers"] is protocol.headers
    for used in ("on_headers_complete", "on_response_complete", "on_body", "send_400_response"):
        assert callable(getattr(protocol, used))
    assert {"response_complete", "more_body"} <= set(RequestResponseCycle.__init__.__code__.co_names)


def test_httptools_names_what_a_callback_raised() -> None:
    class Unreadable(Exception):
        pass

    class Refusing:
        def on_message_begin(self) -> None:
            raise Unreadable

    with pytest.raises(httptools.HttpParserError) as caught:
        httptools.HttpRequestParser(Refusing()).feed_data(b"GET / HTTP/1.1\r\n")
    assert isinstance(caught.value.__context__, Unreadable)
