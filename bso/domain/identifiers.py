"""Identifiers: what a job or recurrence may be called, and ids derived from other ids."""

from __future__ import annotations

import re
import uuid

from bso.domain.foreign_text import is_plain, shown

MAX_LENGTH = 120
PATTERN = r"[A-Za-z0-9][A-Za-z0-9._+:-]{0,119}"
_PATTERN = re.compile(PATTERN, re.ASCII)
_UUID_LENGTH = 36
_MOST_OF_A_LOGIN = 255  # characters that RabbitMQ takes
_TRIALS = uuid.UUID("5b0f3f0e-5a0b-5f5e-9c51-6c6f0a7a4c11")


def identifier_problem(value: object) -> str | None:
    """Say what is wrong with an identifier, or return None if it is a good one.

    Good ones are ASCII, begin with a letter or digit, go on with letters, digits and ``. _ + : -``, and have
    at most 120 characters: they fit a routing key, an ``ascii_bin`` column, a POSIX file name and a URL as they are.
    """
    if not isinstance(value, str):
        return f"must be a string, got {type(value).__name__}"
    if not value:
        return "must not be empty"
    if len(value) > MAX_LENGTH:
        return f"may have at most {MAX_LENGTH} characters, got {len(value)}"
    if not _PATTERN.fullmatch(value):
        return (
            "must begin with a letter or digit and go on with letters, digits or any of . _ + : - "
            f"(ASCII only), got {value!r}"
        )
    return None


def address_problems(job_id: str, command_id: str) -> dict[str, str]:
    """What is wrong with the ids of a command, by name."""
    found = {"job_id": identifier_problem(job_id), "command_id": identifier_problem(command_id)}
    problems = {name: problem for name, problem in found.items() if problem is not None}
    if len(command_id) > _UUID_LENGTH:
        problems.setdefault("command_id", f"must be a UUID, got {command_id!r}")
    return problems


def trial_id_for(begin_command_id: str) -> str:
    """The trial_id that a begin_trial command creates: derived, so that every transport gives the same one."""
    return str(uuid.uuid5(_TRIALS, begin_command_id))


def job_id_for(prefix: str, register_command_id: str) -> str:
    """The job_id for a registration without one: the prefix and eight digits derived from the command."""
    return f"{prefix[: MAX_LENGTH - 9]}-{uuid.uuid5(_TRIALS, register_command_id).hex[:8]}"


def login_problem(login: str) -> str | None:
    """Say what is wrong with the name of a login of the broker, or return None if it can be one."""
    if 1 <= len(login) <= _MOST_OF_A_LOGIN and is_plain(login):
        return None
    expected = f"must be the name of a login of the broker, of 1 to {_MOST_OF_A_LOGIN} characters, none of them hidden"
    return f"{expected}, got '{shown(login[:60])}'"
