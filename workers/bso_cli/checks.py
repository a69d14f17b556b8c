"""What ``bso doctor`` looks at. Each check returns findings; none changes anything or takes for ever."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bso.domain.errors import BsoError
from bso.private_files import denial, rights_of_others
from bso_cli.energy_checks import check_energy
from bso_cli.findings import Finding, Health, broken, note, ok, schema_finding
from bso_cli.job_checks import check_jobs
from bso_cli.refusals import sentence_of
from bso_cli.server_checks import DATABASE_ADVICE, check_broker, check_database, check_gateway
from bso_cli.settings import Places

CHECK_TIMEOUT_S = 20.0
_PAGE = 4096  # bytes, the least by which a database file grows

_ADVICE = {
    "database": DATABASE_ADVICE,
    "embedded optimizer": "let BSO_URL or BSO_STATE_DIR name another place",
}

Check = Callable[[Places], Awaitable[list[Finding]]]


async def examine(places: Places) -> list[Finding]:
    """Everything, in the order in which things depend on each other."""
    findings: list[Finding] = []
    for topic, check in _checks(places):
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                findings += await check(places)
        except TimeoutError:
            findings.append(broken(topic, f"no answer within {CHECK_TIMEOUT_S:g} s", "is it overloaded, or cut off?"))
        except (BsoError, OSError) as error:
            findings.append(broken(topic, str(error) or sentence_of(error), _ADVICE.get(topic, "")))
    return findings


def _checks(places: Places) -> list[tuple[str, Check]]:
    checks: list[tuple[str, Check]] = [("versions", check_versions), ("state directory", check_state_directory)]
    if places.is_embedded:
        checks.append(("embedded optimizer", check_embedded))
    elif places.optimizer_url.startswith("http"):
        checks.append(("gateway", check_gateway))
    else:
        checks.append(("broker", check_broker))
    if places.database_url is not None:
        checks.append(("database", check_database))
    return [*checks, ("energy", check_energy)]


async def check_versions(_places: Places) -> list[Finding]:
    """Python and the packages that matter."""
    import sqlite3

    python = ".".join(map(str, sys.version_info[:3]))
    release = _version("bso-optimizer") or "(not installed: run from a checkout)"
    found = [f"bso-optimizer {release}", f"Python {python}", f"SQLite {sqlite3.sqlite_version}"]
    extras = {
        "server": "aiohttp",
        "mysql": "asyncmy",
        "postgres": "asyncpg",
        "gpu": "nvidia-ml-py",
        "demo": "matplotlib",
    }
    missing = [extra for extra, package in extras.items() if _version(package) is None]
    findings = [ok("versions", ", ".join(found))]
    if missing:
        findings.append(
            note("versions", f"extras not installed: {', '.join(missing)}", "pip install 'bso-optimizer[EXTRA]'")
        )
    return findings


async def check_state_directory(places: Places) -> list[Finding]:
    """The directory exists or can be made, is writable, and is local where a database is to live in it."""
    from bso.storage.errors import NetworkFileSystem
    from bso.storage.filesystems import require_local

    directory = places.state_dir
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        return [broken("state directory", f"{existing} is not a directory", "let BSO_STATE_DIR name another one")]
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(_PAGE))  # what a full disk or a quota does not take
    except OSError as error:
        advice = "make it writable, or let BSO_STATE_DIR name a writable directory"
        return [broken("state directory", f"{existing} is not writable ({error.strerror})", advice)]
    try:
        require_local(directory)
    except NetworkFileSystem as error:
        found = str(error)
        return [broken("state directory", found, "") if places.url is None else note("state directory", found)]
    is_new = "" if directory.exists() else " (made at the first use)"
    return [ok("state directory", f"{directory}{is_new}"), *_seen_by_others(directory, "700")]


async def check_embedded(places: Places) -> list[Finding]:
    """The SQLite file, if there is one already."""
    from bso.service.errors import StoreUnusable
    from bso.storage import open_store
    from bso.storage.filesystems import require_local
    from bso.storage.urls import database_url, sqlite_path
    from bso_cli.access import NothingThere, require_existing_file

    path = sqlite_path(database_url(places.optimizer_url))
    require_local(path)
    if (words := denial(path)) is not None:
        return [
            broken(
                "embedded optimizer",
                words,
                "give this user the right to write there, or let BSO_URL or BSO_STATE_DIR name another place",
            )
        ]
    try:
        require_existing_file(places.optimizer_url)
    except NothingThere:
        return [_new_file(path)]
    store = open_store(places.optimizer_url)
    try:
        await store.ping()
        schema = schema_finding("embedded optimizer", str(path), await store.schema_state())
        seen = _seen_by_others(path, "600")
        return [schema, *seen, *(await check_jobs(store) if schema.health is Health.OK else ())]
    except StoreUnusable as error:
        advice = "repair or remove the file, or let BSO_URL or BSO_STATE_DIR name another place"
        return [broken("embedded optimizer", f"{path}: {error}", advice)]
    finally:
        await store.close()


def _seen_by_others(path: Path, mode: str) -> list[Finding]:
    """A note where others than the owner of a file or folder may read or write it."""
    rights = rights_of_others(path) if path.exists() else None
    if rights is None:
        return []
    found = f"others than the owner may read or write {path} (mode {rights})"
    return [note("rights of files", found, f"where that is not meant: `chmod {mode} {path}`")]


def _new_file(path: Path) -> Finding:
    existing = next(parent for parent in path.parents if parent.exists())
    if existing.is_dir():
        return ok("embedded optimizer", f"{path} (made at the first training)")
    return broken("embedded optimizer", f"{path} cannot be made in {existing}", "let BSO_URL name another file")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
