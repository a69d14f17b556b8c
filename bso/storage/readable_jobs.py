"""The jobs that a login may read, found by indexes: however many other jobs there are, a page of them is cheap."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, Select, and_, func, not_, or_, select, union

from bso.domain.rights import Reader
from bso.schema.codec import dump
from bso.service.serialization import UNNAMED
from bso.storage.dialects import Dialect
from bso.storage.tables import job

_BY_OWNER = "ix_job_owner"


def readable_job_ids(dialect: Dialect, reader: Reader, *, after: str, limit: int | None) -> Select[Any]:
    """The ids of the jobs that a reader may read, in their order, after one of them.

    None of these is missing; of some that are found, only the job's state may show that the reader may not read them.
    """
    later = select(job.c.job_id).where(job.c.job_id > after, job.c.last_seq > 0).order_by(job.c.job_id).limit(limit)
    some = [dialect.by_index(later.where(way), job, index).subquery() for way, index in _ways(reader)]
    found = union(*(select(one.c.job_id) for one in some)).subquery()
    return select(found.c.job_id).order_by(found.c.job_id).limit(limit)


def may_be_readable(reader: Reader) -> ColumnElement[bool]:
    """Whether a reader may read a job, as far as its row shows that: a condition for jobs that are named."""
    return or_(*(way for way, _ in _ways(reader)))


def _ways(reader: Reader) -> list[tuple[ColumnElement[bool], str]]:
    """Each way to be allowed to read a job, with the index that finds these jobs; none finds those of all ways."""
    name = dump(reader.login).decode()
    of_nobody = and_(or_(job.c.owner == "", job.c.owner.is_(None)), *(not_(_is_named(team)) for team in reader.teams))
    granted = and_(
        job.c.granted_to > "", or_(job.c.granted_to.contains(name, autoescape=True), job.c.granted_to == UNNAMED)
    )
    ways = [(job.c.owner == reader.login, _BY_OWNER), (of_nobody, _BY_OWNER), (granted, "ix_job_granted")]
    if reader.team is not None:
        below = [team for team in reader.teams if team.startswith(f"{reader.team}-")]  # teams of their own
        named = and_(_is_named(reader.team), *(not_(_is_named(team)) for team in below))
        owned = and_(_is_owned_by(reader.team), *(not_(_is_member(job.c.owner, team)) for team in below))
        ways += [(named, "PRIMARY"), (owned, _BY_OWNER)]
    return ways


def _is_named(team: str) -> ColumnElement[bool]:
    """Whether a job is named after a team. Ids are compared byte by byte, and a dot comes next after a hyphen."""
    return or_(job.c.job_id == team, and_(job.c.job_id >= f"{team}-", job.c.job_id < f"{team}."))


def _is_owned_by(team: str) -> ColumnElement[bool]:
    return or_(job.c.owner == team, job.c.owner.startswith(f"{team}-", autoescape=True))


def _is_member(login: Column[Any], team: str) -> ColumnElement[bool]:
    """Whether a login belongs to a team; unlike LIKE, which an index serves, SQLite minds capitals here."""
    return or_(login == team, func.substr(login, 1, len(team) + 1) == f"{team}-")
