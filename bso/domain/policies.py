"""Where policies are found: by their names, in this distribution or in another one.

A policy NAME of this distribution is ``POLICY`` in the package ``bso.policies.NAME``. Other distributions name theirs
as entry points of the group ``bso.policies`` (https://packaging.python.org/specifications/entry-points/).
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib import import_module
from traceback import walk_tb
from typing import TYPE_CHECKING

from bso.domain.errors import BsoError, Retryable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from bso.domain.policy import Policy

GROUP = "bso.policies"
MAX_POLICY_NAME = 64
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_POLICY_NAME - 1}}}")


class PolicyMissing(Retryable):
    """The policy of a job is not installed here; who has installed it can go on with the job."""

    needs_operator = True


class BadPolicy(BsoError):
    """A policy returned a value that its contract forbids: its author has to correct it (bso.policies.testing)."""


def place_in_policy(error: BaseException) -> str | None:
    """The policy that raised an error, and the file and line where; None: no policy did."""
    from bso.domain import policy  # which needs this module

    name = package = place = None
    for frame, line in walk_tb(error.__traceback__):
        asked = frame.f_locals.get("self")
        if name is None and isinstance(asked, policy.Policy):
            name, package = asked.name, _package_of(type(asked).__module__)
        if package is not None and _package_of(frame.f_globals.get("__name__", "")) == package:
            place = f"{frame.f_code.co_filename}:{line}"
    return None if place is None else f"policy {name}, {place}"


def _package_of(module: str) -> str:
    """The package of a policy to which a module belongs: of this distribution's policies, each has one."""
    parts = module.split(".")
    return ".".join(parts[:3] if module.startswith(f"{GROUP}.") else parts[:1])


def is_policy_name(name: object) -> bool:
    """Whether a policy may have this name: small letters, digits and underscores, MAX_POLICY_NAME at most."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@cache  # every command asks for it
def policy_named(name: str) -> Policy:
    """The policy of this name. Raises PolicyMissing, which names those that are installed."""
    found = find_policy(name)
    if isinstance(found, PolicyMissing):
        raise PolicyMissing(*found.args) from found.__cause__  # one error, raised again and again, keeps all frames
    return found


@lru_cache(maxsize=256)
def find_policy(name: str) -> Policy | PolicyMissing:
    """The policy of this name, or why it is missing; looked for once in a process, even where it is not there."""
    try:
        return _load(name)
    except PolicyMissing as missing:
        return missing


def _load(name: str) -> Policy:
    if name in own_policies():
        found: Policy = import_module(f"{GROUP}.{name}").POLICY
        return found
    for entry in _entries():
        if entry.name == name:
            return _loaded(entry)
    raise PolicyMissing(
        f"policy {name!r} is not installed here, only {', '.join(policy_names())}: install the distribution that "
        "has it, or register the job with another policy"
    )


@cache
def own_policies() -> tuple[str, ...]:
    """The names of the policies of this distribution, in order."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules(import_module(GROUP).__path__) if found.ispkg))


def policy_names() -> tuple[str, ...]:
    """The names of all policies that are installed, in order."""
    return tuple(sorted({*own_policies(), *(entry.name for entry in _entries())}))


def default_policy() -> str:
    """The name of the policy of a new job whose specification names none."""
    name: str = import_module(GROUP).DEFAULT
    return name


def _entries() -> Iterable[EntryPoint]:
    """The policies of other distributions. A training that needs none does without this import, a long one."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _loaded(entry: EntryPoint) -> Policy:
    from bso.domain import policy  # which needs this module

    place = f"policy {entry.name!r} is installed, but {entry.value}"
    try:
        found = entry.load()
    except Exception as error:
        raise PolicyMissing(f"{place} cannot be loaded: {error!r}") from error
    if not isinstance(found, policy.Policy) or found.name != entry.name:
        expected = f"an instance of bso.domain.policy.Policy whose name is {entry.name!r}"
        raise PolicyMissing(f"{place} is {repr(found)[:100]}: expected {expected}")
    return found
