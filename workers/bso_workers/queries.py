"""Queries: what logins may see of jobs, read beside the decisions with a budget of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.decide import Rules
from bso.domain.errors import BsoError, Rejected
from bso.domain.replies import Problem
from bso.service.ports import Reads
from bso.service.queries import answered, decode_query, encode_refusal

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_LONGEST_S = 10.0
_SHARE = 0.25
"""Queries take so much of the time at most: a worker rests after each, for as long as that takes."""


@dataclass(slots=True, kw_only=True)
class QueryAnswers:
    """Answers queries from a store whose connections no decision waits for."""

    reads: Reads
    rules: Rules
    requires_user_id: bool
    _rests_until_s: float = field(default=0.0, init=False)

    async def answer(self, message: bytes, user: str | None) -> bytes:
        """The answer: a page, or a problem that says why there is none."""
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._rests_until_s - clock())
        began_s = clock()
        try:
            return await self._answered(message, user)
        finally:
            took_s = clock() - began_s
            self._rests_until_s = clock() + took_s * (1.0 - _SHARE) / _SHARE

    async def _answered(self, message: bytes, user: str | None) -> bytes:
        if user is None and self.requires_user_id:
            return _refusal("no_user_id", "The query does not say who sends it", "expected a user_id, got none")
        try:
            async with asyncio.timeout(_LONGEST_S):
                return await answered(self.reads, decode_query(message, user=user), rules=self.rules)
        except Rejected as error:
            return _refusal("malformed", "The message is not a query that this release reads", str(error))
        except (BsoError, TimeoutError) as error:
            reason = str(error) or f"nothing came within {_LONGEST_S:g} s"
            _log.warning("a query was not answered", action="query_failed", reason=reason)
            return _refusal("not_now", "The database does not answer", f"{reason}; ask again later", is_retryable=True)


def _refusal(kind: str, title: str, detail: str, *, is_retryable: bool = False) -> bytes:
    return encode_refusal(Problem(type=kind, title=title, detail=detail[:1000], is_retryable=is_retryable))
