"""What a check of the installation finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bso.service.records import SchemaState


class Health(Enum):
    """How a finding is to be read."""

    OK = "ok"  # as it should be
    NOTE = "note"  # nothing is wrong, but good to know
    BROKEN = "broken"  # does not work until somebody does what the advice says


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at: what was found, and what to do about it where it is broken."""

    topic: str
    health: Health
    found: str
    advice: str = ""


def ok(topic: str, found: str) -> Finding:
    """All is well."""
    return Finding(topic=topic, health=Health.OK, found=found)


def note(topic: str, found: str, advice: str = "") -> Finding:
    """Good to know."""
    return Finding(topic=topic, health=Health.NOTE, found=found, advice=advice)


def broken(topic: str, found: str, advice: str) -> Finding:
    """Somebody has to act."""
    return Finding(topic=topic, health=Health.BROKEN, found=found, advice=advice)


def schema_finding(topic: str, name: str, schema: SchemaState) -> Finding:
    """Whether a database has the schema of this program."""
    from bso.service.records import SchemaStatus

    match schema.status:
        case SchemaStatus.CURRENT:
            return ok(topic, f"{name}, schema {schema.found}")
        case SchemaStatus.NEWER:
            advice = "a newer release has migrated it: upgrade bso here"
        case _:
            advice = "run `bso migrate`"
    return broken(topic, f"{name}: schema {schema.found or 'missing'}, this program needs {schema.expected}", advice)
