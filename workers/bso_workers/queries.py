"""Queries: what logins may see of jobs, read beside the decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from dataclasses import dataclass

import structlog
from structlog.typing import FilteringBoundLogger

from bso.domain.decide import Rules
from bso.domain.errors import BsoError, Rejected
from bso.domain.replies import Problem
from bso.service.ports import Reads
from bso.service.queries import decode_query, encode_refusal
from bso.service.query_answers import answered

_log: FilteringBoundLogger = structlog.get_logger(__name__)

_LONGEST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswers:
    """Answers queries from a store whose connections no decision waits for."""

    reads: Reads
    rules: Rules
    requires_user_id: bool
    gateways: Container[str] = frozenset()

    async def answer(self, message: bytes, user: str | None) -> bytes:
        """The answer: a page, or a problem that says why there is none. Why the database fails is logged only."""
        if user is None and self.requires_user_id:
            return _refusal("no_user_id", "The query does not say who sends it", "expected a user_id, got none")
        try:
            async with asyncio.timeout(_LONGEST_S):
                asked = decode_query(message, user=user, gateways=self.gateways)
                return await answered(self.reads, asked, rules=self.rules)
        except Rejected as error:
            return _refusal("malformed", "The message is not a query that this release reads", str(error))
        except (BsoError, TimeoutError) as error:
            reason = str(error) or f"nothing came within {_LONGEST_S:g} s"
            _log.warning("a query was not answered", action="query_failed", reason=reason)
        except Exception as error:  # noqa: BLE001  the next query may be a sound one
            _log.exception("a query failed in an unforeseen way", action="query_broke", reason=repr(error))
            return _not_now("something failed at the worker, whose log says what: ask again later")
        return _not_now("the workers' database did not answer, and their log says why: ask again later")


def _refusal(kind: str, title: str, detail: str) -> bytes:
    return encode_refusal(Problem(type=kind, title=title, detail=detail[:1000]))


def _not_now(detail: str) -> bytes:
    title = "The query cannot be answered now"
    return encode_refusal(Problem(type="not_now", title=title, detail=detail, is_retryable=True))


TOO_MANY = _not_now("too many queries of this login wait already: ask again later")
"""The answer to a query of a login that does not wait for the answers to those before."""
