"""What operators see and do: how the optimizer stands, dead letters, and actions that are confirmed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from bso.domain.commands import Request as Command
from bso.domain.errors import BsoError
from bso.domain.replies import Deleted, Problem
from bso.service.queries import Operation, ShowOperation
from bso_gateway.http import Gate, HttpError, check_operates_all, token_of
from bso_gateway.pages.actions import Action, action_named, check_seal, command_id_in, letters_action, seal_of
from bso_gateway.pages.all_jobs import JobsReader
from bso_gateway.pages.answers import ask
from bso_gateway.pages.contents import Contents
from bso_gateway.pages.door import Door, admit, form_of
from bso_gateway.pages.paths import PREFIX, job_path
from bso_gateway.pages.renderer import Renderer
from bso_gateway.problems import refused

_LETTERS = f"{PREFIX}/operation/dead-letters"
_MOST_LETTERS, _MOST_OF_BODY = 30, 400


class OperationPages:
    """Pages for operators."""

    def __init__(self, gate: Gate, door: Door, renderer: Renderer, contents: Contents, jobs: JobsReader) -> None:
        self._gate = gate
        self._door = door
        self._renderer = renderer
        self._jobs = jobs
        self._contents = contents

    def routes(self) -> Sequence[Route]:
        """Where they are."""
        return [
            Route(f"{PREFIX}/operation", self.operation),
            Route(_LETTERS, self.letters),
            Route(f"{_LETTERS}/{{name}}", self.confirm_letters),
            Route(f"{_LETTERS}/{{name}}", self.act_on_letters, methods=["POST"]),
            Route(f"{PREFIX}/jobs/{{job_id}}/actions/{{name}}", self.confirm),
            Route(f"{PREFIX}/jobs/{{job_id}}/actions/{{name}}", self.act, methods=["POST"]),
        ]

    async def operation(self, request: Request) -> Response:
        """Workers, queues, latencies and the store."""
        await admit(request, self._door)
        return await self._renderer.page("operation.html", operation=await self._contents.operation(request))

    async def letters(self, request: Request) -> Response:
        """The oldest commands that no worker could handle."""
        await self._admit_operator(request)
        try:
            async with self._gate.optimizer.dead_letters() as box:
                found = await box.peek(limit=_MOST_LETTERS)
        except BsoError as error:
            raise _not_reached(error) from error
        letters = [(each, each.body[:_MOST_OF_BODY].decode(errors="replace")) for each in found]
        return await self._renderer.page("dead_letters.html", letters=letters, most=_MOST_LETTERS)

    async def confirm_letters(self, request: Request) -> Response:
        """What an action on dead letters would do, and the form that does it."""
        await self._admit_operator(request)
        return await self._asked(request, letters_action(request.path_params["name"], request.query_params))

    async def act_on_letters(self, request: Request) -> Response:
        """Do what was confirmed."""
        await self._admit_operator(request)
        form = await form_of(request, self._gate)
        check_seal(request.cookies.get(self._door.cookie), form.get("seal", ""))
        action = letters_action(request.path_params["name"], form)
        message_id = action.fields.get("message_id")
        try:
            async with self._gate.optimizer.dead_letters() as box:
                if action.name == "drop":
                    await box.purge()
                    sent = 1
                else:
                    sent = await box.requeue(None if message_id is None else frozenset({message_id}))
        except BsoError as error:
            raise _not_reached(error) from error
        if not sent:
            words = "none was sent again: they have been sent or deleted meanwhile, or are too large to be sent"
            raise HttpError(409, words, kind="no_dead_letter", title="Nothing was done")
        return RedirectResponse(_LETTERS, 303)

    async def confirm(self, request: Request) -> Response:
        """What an action on a job would do, and the form that does it."""
        await admit(request, self._door)
        job_id = request.path_params["job_id"]
        await self._contents.newest(request, job_id)  # that there is such a job, and that the reader may see it
        return await self._asked(request, action_named(request.path_params["name"], job_id, request.query_params))

    async def act(self, request: Request) -> Response:
        """Do what was confirmed; sent twice, it is done once."""
        await admit(request, self._door)
        form = await form_of(request, self._gate)
        check_seal(request.cookies.get(self._door.cookie), form.get("seal", ""))
        job_id = request.path_params["job_id"]
        command = action_named(request.path_params["name"], job_id, form).command
        assert command is not None
        command_id = command_id_in(form.get("command_id", ""))
        reply = await self._gate.decide(request, Command(command_id=command_id, job_id=job_id, command=command))
        if isinstance(reply, Problem):
            raise refused(reply)
        self._jobs.changed(job_id, is_deleted=isinstance(reply, Deleted))
        return RedirectResponse(PREFIX if isinstance(reply, Deleted) else job_path(job_id), 303)

    async def _asked(self, request: Request, action: Action) -> Response:
        return await self._renderer.page(
            "action.html",
            action=action,
            path=request.url.path,
            seal=seal_of(request.cookies.get(self._door.cookie)),
            command_id=str(uuid.uuid4()),
        )

    async def _admit_operator(self, request: Request) -> None:
        """Let in whom the gateway and the workers take for an operator: dead letters are everybody's."""
        await admit(request, self._door)
        check_operates_all(token_of(request))
        await ask(self._gate, request, ShowOperation(), Operation)


def _not_reached(error: BsoError) -> HttpError:
    return HttpError(503, str(error), kind="dead_letters", title="Dead letters cannot be reached")
