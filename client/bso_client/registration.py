"""The job as this process knows it: registered with the optimizer, or remembered from earlier processes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from bso.domain.commands import OnConflict, RegisterJob
from bso.domain.job_spec import JobSpec as WholeSpec
from bso.domain.replies import Registered
from bso_client.job_spec import JobSpec
from bso_client.notes import Note, Notebook
from bso_client.training.recurrence import CurrentRecurrence
from bso_client.training.state import TrainingState

logger = logging.getLogger("bso")


class Registration:
    """A job's name and specification. ``whole`` is None until the optimizer has registered the job in this process."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        job_id: str | None,
        notebook: Notebook,
        on_conflict: Literal["new_version", "raise"],
        inherit: bool,
        like: str | None,
    ) -> None:
        self.job_id = job_id
        self.whole: WholeSpec | None = None
        self._spec = spec
        self._notebook = notebook
        self._on_conflict = OnConflict(on_conflict)
        self._inherit = inherit
        self._like = like
        self._note: Note | None = None
        self._warned: set[str] = set()

    @property
    def command(self) -> RegisterJob:
        """What registers the job."""
        return RegisterJob(
            spec=self._spec.requested,
            job_id_prefix=self._spec.job_id_prefix,
            on_conflict=self._on_conflict,
            inherit=self._inherit,
            like=self._like,
        )

    @property
    def late_command(self) -> RegisterJob:
        """What registers the job later, unless it was deleted meanwhile.

        Where this process has registered it already, that makes no other version of what others have made of it since.
        """
        on_conflict = self._on_conflict if self.whole is None else OnConflict.RAISE
        return replace(self.command, on_conflict=on_conflict, is_late=True)

    def registered(self, reply: Registered) -> WholeSpec:
        """The job is registered: note it for processes that find nobody to ask."""
        if self.job_id is None:
            logger.warning(
                "the job was registered as %s: pass job_id (or BSO_JOB_ID) to go on with it in the next recurrence",
                reply.job_id,
                extra={"action": "job_registered", "job_id": reply.job_id},
            )
        self.job_id, self.whole = reply.job_id, reply.spec
        self.warn(reply.warnings)
        known = self._notebook.read(reply.job_id)
        self._note = Note(job_id=reply.job_id, spec=reply.spec) if known is None else replace(known, spec=reply.spec)
        if self._note != known:
            self._notebook.write(self._note)
        return reply.spec

    def remembered(self) -> Note | None:
        """What is known without asking, under the specification that the user now wants; None: nothing."""
        note = self._noted()
        if note is not None and self.whole is None:
            note = replace(note, spec=self._spec.resolve(note.spec))
        self._note = note
        return note

    def how_ended(self, training: TrainingState) -> str | None:
        """How a training has ended, if it is the last one that has ended here; None: it is another one."""
        note = self._noted()
        return note.ended_as if note is not None and note.ended == training.key else None

    def gone_on_with(self, recurrence: CurrentRecurrence) -> CurrentRecurrence:
        """The recurrence with what earlier processes have noted of it."""
        note = self._note
        return recurrence if note is None else recurrence.gone_on_with(note.recurrence_id, note.failed)

    def learn(self, training: TrainingState, after: CurrentRecurrence) -> None:
        """Note the result of a training, and where its recurrence stands ``after`` it."""
        note = None if self._note is None else self._note.with_result(training, after)
        if note is not None and note != self._note:
            self._note = note
            self._notebook.write(note)

    def _noted(self) -> Note | None:
        return self._note or (self._notebook.read(self.job_id) if self.job_id else None)

    def warn(self, sentences: Iterable[str]) -> None:
        """Show the optimizer's warnings, each once."""
        for words in sentences:
            if words not in self._warned:
                self._warned.add(words)
                logger.warning("%s", words, extra={"action": "optimizer_warning", "job_id": self.job_id})
