"""Pages that say what another policy or eta would have cost a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bso.domain.policies import policy_names
from bso_gateway.http import Gate, HttpError
from bso_gateway.pages.contents import AT_LENGTH, Contents, LogTooLong
from bso_gateway.pages.door import Door, admit
from bso_gateway.pages.paths import PREFIX
from bso_gateway.pages.renderer import Renderer
from bso_gateway.pages.what_if import Question, answer_to, question_in

_PLACE_OF_ANSWER = "what is found appears here"
_LOOK_S = 0.5  # between two looks whether anybody waits for a simulation


class WhatIfPages:
    """The form of such a question, and its answer. One is answered at a time."""

    def __init__(self, gate: Gate, door: Door, renderer: Renderer, contents: Contents) -> None:
        self._gate = gate
        self._door = door
        self._renderer = renderer
        self._contents = contents
        self._simulating = asyncio.Lock()

    def routes(self) -> Sequence[Route]:
        """Where they are."""
        return [Route(f"{PREFIX}/jobs/{{job_id}}/what-if", self.show)]

    async def show(self, request: Request) -> Response:
        """What another policy or eta would have cost; the answer comes at the end of the page, when it is found."""
        await admit(request, self._door)
        found = await self._contents.shown(request, request.path_params["job_id"])
        question = question_in(found.job_id, request.query_params)
        page = await self._renderer.page(
            "what_if.html",
            contents=found,
            kind=found.kind(request.query_params.get("hardware") or None),
            policies=policy_names(),
            question=question,
            place_of_answer=_PLACE_OF_ANSWER,
        )
        if question is None:
            return page
        before, _, after = bytes(page.body).partition(_PLACE_OF_ANSWER.encode())

        async def parts() -> AsyncIterator[bytes]:
            yield before
            yield await self._answer_to(request, question)
            yield after

        return StreamingResponse(parts(), media_type="text/html")

    async def _answer_to(self, request: Request, question: Question) -> bytes:
        """The answer as HTML, or why there is none; nothing, where nobody waits for it any more."""
        answering = asyncio.create_task(self._answered(request, question), name="what if")
        try:
            while not answering.done():
                await asyncio.wait({answering}, timeout=_LOOK_S)
                if self._gate.is_draining.is_set() or await request.is_disconnected():
                    return b""
            values: dict[str, Any] = {"answer": answering.result(), "error": None}
        except HttpError as error:
            values = {"answer": None, "error": error}
        finally:
            answering.cancel()
            await asyncio.wait({answering})
        return bytes((await self._renderer.page("what_if_answer.html", job_id=question.job_id, **values)).body)

    async def _answered(self, request: Request, question: Question) -> Mapping[str, Any]:
        if self._simulating.locked():
            words = "another simulation runs at this gateway: try again in a minute"
            raise HttpError(503, words, kind="busy")
        async with self._simulating:
            try:
                log = [each async for each in self._contents.messages(request, question.job_id, most_pages=AT_LENGTH)]
            except LogTooLong as error:
                words = f"the log is long: bso replay what-if {question.job_id} reads all of it"
                raise HttpError(422, words, kind="too_large") from error
            return await answer_to(question, log)
