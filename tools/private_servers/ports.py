"""Ports of 127.0.0.1 for servers that are still to start."""

import contextlib
import errno
import random
import socket
from types import TracebackType
from typing import Self

# Below those that the system gives to outgoing connections: else a client that tries again and again while the server
# is down would one day get the server's own port, connect to itself, and keep the server from its port.
_CANDIDATES = range(15000, 32000)
_TRIES = 1000


class ClaimedPorts:
    """Ports that nothing listens on, and that nobody else is given through this class until release().

    A server takes seconds from the choice of its port to listening on it, and two that start at once could choose the
    same one. A claim is an abstract Unix socket, named after the port, which goes with the process that holds it (see
    unix(7)).

    Raises:
        OSError: (EADDRINUSE) when so many ports could not be found.
    """

    def __init__(self, count: int) -> None:
        self._claims: list[socket.socket] = []
        self.numbers: list[int] = []
        for port in random.sample(_CANDIDATES, _TRIES):
            self._try(port)
            if len(self.numbers) == count:
                return
        self.release()
        raise OSError(errno.EADDRINUSE, f"no {count} free ports between {_CANDIDATES.start} and {_CANDIDATES.stop - 1}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let others have the ports; those that a server still listens on are not given to anybody."""
        for claim in self._claims:
            claim.close()
        self._claims.clear()

    def _try(self, port: int) -> None:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):
            claim.bind(f"\0bso-port-{port}")
            socket.create_server(("127.0.0.1", port)).close()
            self._claims.append(claim)
            self.numbers.append(port)
            return
        claim.close()
