"""What operators do on a page: each action says what it will do, and is confirmed in a form of its own."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from bso.domain.commands import AllowBatchSize, Command, DeleteJob
from bso_gateway.http import HttpError
from bso_gateway.pages.paths import PREFIX, job_path

_MOST_DIGITS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What somebody has to confirm. ``fields`` go with the form; ``consequences`` are sentences.

    ``command`` is what a job gets; None: it is about dead letters. ``back`` is the page where it was asked for.
    """

    name: str
    title: str
    consequences: tuple[str, ...]
    back: str
    command: Command | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


def action_named(name: str, job_id: str, given: Mapping[str, str]) -> Action:
    """An action on a job with what its form or address gives. Raises HttpError 404, 422."""
    match name:
        case "delete":
            return Action(
                name=name,
                title=f"Delete job {job_id}?",
                consequences=(
                    "Running trainings of the job are stopped at their next report, and nothing is learnt of them.",
                    "What was learnt is gone. The list of its trials and what it saved stay until the job is purged.",
                    "A training that registers the job again begins anew.",
                ),
                back=job_path(job_id),
                command=DeleteJob(),
            )
        case "allow":
            given_size = given.get("batch_size", "")
            if not (given_size.isascii() and given_size.isdigit() and 0 < len(given_size) <= _MOST_DIGITS):
                words = f"batch_size must be a whole number, got {given_size[:60]!r}"
                raise HttpError(422, words, kind="invalid_batch_size")
            return Action(
                name=name,
                title=f"Let batch size {given_size} of job {job_id} be tried again?",
                consequences=(
                    "Whatever was found on any hardware about its memory and its time is forgotten.",
                    "It may be chosen again, and so may smaller ones.",
                ),
                back=job_path(job_id),
                command=AllowBatchSize(batch_size=int(given_size)),
                fields={"batch_size": given_size},
            )
    raise HttpError(404, f"there is no action {name[:60]!r}", kind="no_such_page")


def letters_action(name: str, given: Mapping[str, str]) -> Action:
    """An action on dead letters: all of them, or the one with the ``message_id`` that is given. Raises HttpError."""
    back = f"{PREFIX}/operation/dead-letters"
    message_id = given.get("message_id", "")
    match name:
        case "requeue":
            return Action(
                name=name,
                title=f"Send dead letter {message_id[:80]} again?" if message_id else "Send all dead letters again?",
                consequences=(
                    "Workers get the command once more. Its id keeps it from being carried out twice.",
                    "Where its reason is still there, it becomes a dead letter again.",
                ),
                back=back,
                fields={"message_id": message_id} if message_id else {},
            )
        case "drop":
            return Action(
                name=name,
                title="Delete all dead letters?",
                consequences=("The reports and results in them are lost.",),
                back=back,
            )
    raise HttpError(404, f"there is no action {name[:60]!r}", kind="no_such_page")


def seal_of(session: str | None) -> str:
    """What a form of a session carries, so that no other site can send it: only pages of the session know it."""
    return blake2b((session or "").encode(), key=b"bso form", digest_size=16).hexdigest()


def check_seal(session: str | None, given: str) -> None:
    """Raise HttpError 403 where a form is not of this session."""
    if not hmac.compare_digest(seal_of(session).encode(), given.encode()):
        words = "the form is not of this session: go back, load the page again, and confirm once more"
        raise HttpError(403, words, kind="foreign_form", title="Nothing was done")


def command_id_in(given: str) -> str:
    """The command_id of a form, which is the same when it is sent twice. Raises HttpError 422."""
    try:
        return str(uuid.UUID(given))
    except ValueError as error:
        raise HttpError(422, "the form is damaged: load the page again", kind="invalid_body") from error
