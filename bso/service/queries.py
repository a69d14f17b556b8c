"""Queries: what a login asks to see of jobs through the broker, and the pages that it gets. They change nothing.

They travel as commands do, in the same envelope, through a queue of their own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from bso.domain.identifiers import identifier_problem
from bso.domain.replies import JobDescription, Problem
from bso.domain.savings import SavedInMonth
from bso.domain.tokens import Token
from bso.domain.trial import Trial
from bso.schema.codec import decode_event, dump, wire_name
from bso.schema.envelope import MAX_ANSWER_BYTES, Envelope, unseal, validated
from bso.schema.errors import MalformedMessage
from bso.service.records import JobOverview, LogEpoch, ParkedJob, PowerProfile, SchemaState, StoredEvent

MOST_FOLLOWED = 50
"""Jobs whose logs are read together."""
THE_END = -1
"""In place of an event_id: nothing that is there already is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListJobs:
    """The jobs that the login may read, by id, after this one."""

    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSavings:
    """What each of these jobs saved, by month, deleted ones too; by id, after this one."""

    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowJob:
    """One job, as the command describe_job has it described, without taking part in its decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListTrials:
    """The trials of a job, after this number."""

    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEvents:
    """The log of a job, after this event_id; THE_END: nothing yet, and ``next_after`` is where the log ends."""

    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowJobs:
    """The logs of several jobs: of each what comes after an event_id, 0 for all of it."""

    after: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPowerProfiles:
    """What was measured of a job's batch sizes under several power limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOperation:
    """How the store of all jobs stands. Only operators may ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckToken:
    """What a token lets its bearer do. Only gateways may ask; ``digest`` is that of the secret which was shown."""

    token_id: str
    digest: str


Query = (
    ListJobs
    | ListSavings
    | ShowOperation
    | ShowJob
    | ListTrials
    | ListEvents
    | FollowJobs
    | ListPowerProfiles
    | CheckToken
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPage:
    """Jobs, those of them that are in trouble, and after which id the next page begins; None: this is the last."""

    jobs: tuple[JobOverview, ...]
    parked: tuple[ParkedJob, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSavings:
    """What a job saved, by month."""

    job_id: str
    saved: tuple[SavedInMonth, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingsPage:
    """What jobs saved, but for ``unreadable`` ones, and after which id the next page begins; None: this is the last."""

    jobs: tuple[JobSavings, ...]
    next_after: str | None
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job as far as it can be shown: ``job`` is None where it cannot be read, ``unreadable`` says why.

    ``parked``: it is in trouble.
    """

    job: JobDescription | None
    parked: ParkedJob | None
    unreadable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialsPage:
    """Trials, without their trial_ids."""

    trials: tuple[Trial, ...]
    next_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEvent:
    """An event, as it is published, with its place in the log."""

    event_id: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsPage:
    """Events of the log. Of several jobs it has no ``next_after``: it is the last page when it has no events."""

    events: tuple[ListedEvent, ...]
    next_after: int | None = None

    @property
    def stored(self) -> Sequence[StoredEvent]:
        """The events as a store gives them. Raises MalformedMessage."""
        return [StoredEvent(event_id=one.event_id, recorded=decode_event(one.message.encode())) for one in self.events]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProfilesPage:
    """All power profiles of a job."""

    profiles: tuple[PowerProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How the store stands: its schema, the epoch of its log, jobs in trouble, the longest first, at most a hundred.

    ``lapsed_leases`` are trials that no worker has suspended yet, ``unpublished_events`` those that nobody has marked
    as published for 10 s; either is counted up to a few hundred.
    """

    schema: SchemaState
    log_epoch: LogEpoch | None
    parked: tuple[ParkedJob, ...]
    jobs_parked: int
    lapsed_leases: int
    unpublished_events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedToken:
    """A token; None: there is none of this id and digest, or it opens nothing any more."""

    token: Token | None


Page = JobsPage | SavingsPage | Operation | ShownJob | TrialsPage | EventsPage | PowerProfilesPage | CheckedToken

_TYPES: dict[str, type] = {wire_name(member): member for member in (*get_args(Query), *get_args(Page), Problem)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A query with its address. ``job_id`` is None where it is not about one job; ``user``: the login that asks.

    A gateway asks ``on_behalf_of`` one of its users; where it is believed, ``user`` is that one.
    """

    query: Query
    query_id: str
    job_id: str | None = None
    user: str | None = None
    on_behalf_of: str | None = None


def encode_query(asked: Asked) -> bytes:
    """A query as a message."""
    name = wire_name(type(asked.query))
    return dump(
        Envelope(
            type=name,
            command_id=asked.query_id,
            job_id=asked.job_id,
            on_behalf_of=asked.on_behalf_of,
            body=asked.query,
        )
    )


def decode_query(message: bytes, *, user: str | None, gateways: Container[str] = frozenset()) -> Asked:
    """Read a query of a login; ``gateways`` are believed when they ask for others, and alone may check tokens.

    Raises MalformedMessage, UnsupportedSchema.
    """
    envelope = unseal(message)
    query = _read(envelope, get_args(Query))
    if isinstance(query, FollowJobs) and not 1 <= len(query.after) <= MOST_FOLLOWED:
        raise MalformedMessage(f"after must name 1 to {MOST_FOLLOWED} jobs, got {len(query.after)}")
    if isinstance(query, ListJobs | ListSavings) and query.after and (problem := identifier_problem(query.after)):
        raise MalformedMessage(f"after {problem}")
    if (problem := next(filter(None, map(identifier_problem, _jobs_of(query, envelope.job_id))), None)) is not None:
        raise MalformedMessage(f"job_id {problem}")
    is_gateway = user is not None and user in gateways
    if not is_gateway and (isinstance(query, CheckToken) or envelope.on_behalf_of is not None):
        who = "" if user is None else f"; login {user} is none of the workers' BSO_GATEWAYS"
        raise MalformedMessage(f"only a gateway may ask this{who}")
    asker = envelope.on_behalf_of or user
    return Asked(query=query, job_id=envelope.job_id, query_id=envelope.command_id, user=asker)


def _jobs_of(query: Query, job_id: str | None) -> Sequence[str | None]:
    """The jobs that a query names, or has to."""
    match query:
        case ListJobs() | ListSavings() | ShowOperation() | CheckToken():
            return ()
        case FollowJobs():
            return tuple(query.after)
        case _:
            return (job_id,)


def decode_page(message: bytes) -> Page | Problem:
    """Read the answer to a query. Raises MalformedMessage, UnsupportedSchema."""
    answer: Page | Problem = _read(unseal(message, most_bytes=MAX_ANSWER_BYTES), (*get_args(Page), Problem))
    return answer


def encode_page(answer: Page | Problem, *, query_id: str, job_id: str | None) -> bytes:
    """The answer to a query as a message."""
    return dump(Envelope(type=wire_name(type(answer)), command_id=query_id, job_id=job_id, body=answer))


def encode_refusal(problem: Problem) -> bytes:
    """The answer to a query that cannot be read, or not be answered now."""
    return dump(Envelope(type=wire_name(Problem), command_id="", body=problem))


def _read(envelope: Envelope, expected: Sequence[type]) -> Any:
    names = [wire_name(member) for member in expected]
    if envelope.type not in names:
        raise MalformedMessage(f"expected one of {', '.join(names)}, got {envelope.type[:60]!r}")
    return validated(_TYPES[envelope.type], envelope.body, envelope.type)
