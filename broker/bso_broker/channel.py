"""How large messages may be: channels throw away, while they read it, what is too large for their reader.

aiormq collects a body in memory, whatever its size, before it hands the message over. The limit of who reads it would
come too late: as many bodies as the broker hands over ahead would be in memory together.
"""

from __future__ import annotations

from typing import Any

import aiormq
from aiormq.abc import DeliveredMessage, GetResultType
from aiormq.exceptions import InvalidFrameError
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from typing_extensions import override

from bso.schema.envelope import MAX_ANSWER_BYTES
from bso_broker.errors import MessageTooLarge


class Channel(aiormq.Channel):
    """A message whose body is larger than ``largest_body`` arrives with its properties and without its body."""

    def __init__(self, *args: Any, largest_body: int = MAX_ANSWER_BYTES, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.largest_body = largest_body

    @override
    async def _read_content(
        self, frame: Basic.Deliver | Basic.Return | GetResultType, header: ContentHeader
    ) -> DeliveredMessage:
        if header.body_size <= self.largest_body:
            return await super()._read_content(frame, header)
        unread = header.body_size
        while unread > 0:
            piece = await self._get_frame()
            if not isinstance(piece, ContentBody):
                raise InvalidFrameError(piece)
            unread -= len(piece.value)
        return DeliveredMessage(delivery=frame, header=header, body=b"", channel=self)


def discarded_bytes(message: DeliveredMessage) -> int:
    """How large the body of a message was, if it was thrown away; else 0."""
    return 0 if message.body else int(message.header.body_size or 0)


def check_size(body: bytes) -> None:
    """Raise MessageTooLarge for what a broker would answer by closing the channel, and everybody's calls with it."""
    if len(body) > MAX_ANSWER_BYTES:
        raise MessageTooLarge(f"a message may have at most {MAX_ANSWER_BYTES} bytes, got {len(body)}")
