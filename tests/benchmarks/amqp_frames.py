"""Counting AMQP 0-9-1 frames on their way through a proxy.

A frame is type (1 byte), channel (2), size (4), payload, and the end (0xCE); a connection begins with a header that is
none. https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf, sections 2.3.5 and 4.2.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

_HEAD, _END = 7, 0xCE
_PROTOCOL = b"AMQP\0\0\x09\1"
_METHOD = 1
_KINDS = {2: "header", 3: "body", 8: "heartbeat"}
_METHODS = {
    bytes((0, 60, 0, 40)): "publish",
    bytes((0, 60, 0, 60)): "deliver",
    bytes((0, 60, 0, 80)): "ack",
}
_OTHER = "other method"


@dataclass(kw_only=True)
class FrameCounts:
    """Frames by kind: what clients have ``sent`` and ``received``."""

    sent: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    @property
    def totals(self) -> dict[str, int]:
        """Frames in each direction, heartbeats left out."""
        directions = {"sent": self.sent, "received": self.received}
        return {name: counts.total() - counts["heartbeat"] for name, counts in directions.items()}

    def watch(self, is_request: bool) -> Callable[[bytes], None]:
        """Takes the bytes of one direction of one connection, in whatever pieces they come."""
        return _Direction(counts=self.sent if is_request else self.received).take


@dataclass(kw_only=True)
class _Direction:
    counts: Counter[str]
    _left: bytes = b""

    def take(self, piece: bytes) -> None:
        data = (self._left + piece).removeprefix(_PROTOCOL)
        start = 0
        while len(data) - start >= _HEAD:
            end = start + _HEAD + int.from_bytes(data[start + 3 : start + _HEAD]) + 1
            if end > len(data):
                break
            assert data[end - 1] == _END, f"expected a frame of AMQP to end, got {data[end - 1]:#x}"
            self.counts[_kind(data[start:end])] += 1
            start = end
        self._left = data[start:]


def _kind(frame: bytes) -> str:
    if frame[0] == _METHOD:
        return _METHODS.get(frame[_HEAD : _HEAD + 4], _OTHER)
    return _KINDS[frame[0]]
