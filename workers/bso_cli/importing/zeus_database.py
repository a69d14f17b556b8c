"""The database of Zeus' batch size server (zeus 0.16), as it was at one moment. Nothing is ever written there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, ColumnClause, Connection, column, event, inspect, select, table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from bso.domain.errors import BsoError, Misconfigured
from bso.storage.connections import PATIENT, connecting, create_engine, read_password_again
from bso.storage.urls import database_url, shown, sqlite_path

Row = Mapping[str, Any]
"""The values of a row by column, as the driver gives them: not checked."""

_JOB = (
    "job_id", "job_id_prefix", "default_batch_size", "higher_is_better_metric", "eta_knob", "beta_knob",
    "target_metric", "max_epochs", "num_pruning_rounds", "window_size", "max_power", "number_of_gpus", "gpu_model",
    "mab_prior_mean", "mab_prior_precision", "mab_num_explorations", "mab_seed",
)  # fmt: skip
_SIZE = ("job_id", "batch_size")
_TRIAL = (
    "job_id", "batch_size", "trial_number", "start_timestamp", "end_timestamp", "type", "status", "time", "energy",
    "converged",
)  # fmt: skip
_TABLES = {"Job": _JOB, "BatchSize": _SIZE, "Trial": _TRIAL}
_DRIVER = re.compile(r"^(sqlite|mysql|mariadb|postgres(?:ql)?)\+[a-z0-9_]+(?=:)", re.IGNORECASE)
_REPEATABLE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_AT_ONE_MOMENT = {
    "sqlite": ("BEGIN",),
    "mysql": (_REPEATABLE, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"),
    "postgresql": (f"{_REPEATABLE}, READ ONLY",),
}


class NotZeus(Misconfigured):
    """The database is not one of Zeus' batch size server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeusRows:
    """All that is stored of one job; ``trials`` in no order."""

    job: Row
    batch_sizes: Sequence[Any]
    trials: Sequence[Row]


async def read_zeus(address: str) -> Sequence[ZeusRows]:
    """Every job of a database of Zeus' server, by job_id, at one moment.

    Raises NotZeus, another Misconfigured for an address that cannot be used, Retryable where nothing answers.
    """
    url = database_url(_DRIVER.sub(r"\1", address.strip()))
    try:
        async with snapshot(url, address) as connection:
            names = await connection.run_sync(_names_of_tables, shown(url))
            jobs, sizes, trials = [await _rows(connection, name, columns) for name, columns in names.items()]
    except NotZeus:
        raise
    except BsoError as error:
        raise type(error)(f"Zeus' database {shown(url)}: {error}") from error
    return _by_job(jobs, sizes, trials)


@asynccontextmanager
async def snapshot(url: URL, address: str) -> AsyncIterator[AsyncConnection]:
    """A transaction that reads and sees one moment."""
    engine = _file_engine(url) if url.get_backend_name() == "sqlite" else _server_engine(url, address)
    try:
        with connecting():
            async with engine.connect() as connection:
                for statement in _AT_ONE_MOMENT[url.get_backend_name()]:
                    await connection.exec_driver_sql(statement)
                yield connection
                await connection.rollback()
    finally:
        await engine.dispose()


def _server_engine(url: URL, address: str) -> AsyncEngine:
    engine = create_engine(url, PATIENT)
    read_password_again(engine, address)
    return engine


def _file_engine(url: URL) -> AsyncEngine:
    """An engine that opens the file for reading only, and neither makes it nor changes how it keeps its journal."""
    path = sqlite_path(url)
    if not path.is_file():
        raise Misconfigured(f"there is no file {path}; Zeus' server has its address in ZEUS_BSO_DATABASE_URL")
    engine = create_async_engine(_read_only(path), hide_parameters=True, connect_args={"isolation_level": None})

    @event.listens_for(engine.sync_engine, "connect")
    def _read_any_text(connection: Any, _record: object) -> None:
        connection.driver_connection.text_factory = _text

    return engine


def _read_only(path: Path) -> URL:
    return URL.create("sqlite+aiosqlite", database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true"})


def _text(raw: bytes) -> str:
    """Text that may not be UTF-8: it is refused later, with the job that it belongs to."""
    return raw.decode(errors="backslashreplace")


def _names_of_tables(connection: Connection, name: str) -> Mapping[str, Sequence[str]]:
    """The tables as this server spells them, with the columns that are needed of each. Raises NotZeus."""
    there = inspect(connection)
    found = {known.lower(): known for known in there.get_table_names()}
    missing = [wanted for wanted in _TABLES if wanted.lower() not in found]
    if missing:
        raise NotZeus(
            f"{name} is not a database of Zeus' batch size server: expected the tables {', '.join(_TABLES)}, and "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
        )
    for wanted, columns in _TABLES.items():
        known = {each["name"].lower() for each in there.get_columns(found[wanted.lower()])}
        if lacking := [each for each in columns if each not in known]:
            raise NotZeus(
                f"{name} is not a database that Zeus 0.16 has made: table {wanted} has no column {', '.join(lacking)}"
            )
    return {found[wanted.lower()]: columns for wanted, columns in _TABLES.items()}


async def _rows(connection: AsyncConnection, name: str, columns: Sequence[str]) -> Sequence[Row]:
    wanted: list[ColumnClause[Any]] = [column(each) for each in columns]
    found = await connection.execute(select(*wanted).select_from(table(name)))
    return [dict(zip(columns, row, strict=True)) for row in found]


def _by_job(jobs: Sequence[Row], sizes: Sequence[Row], trials: Sequence[Row]) -> Sequence[ZeusRows]:
    sizes_of: dict[Any, list[Any]] = defaultdict(list)
    trials_of: dict[Any, list[Row]] = defaultdict(list)
    for row in sizes:
        sizes_of[row["job_id"]].append(row["batch_size"])
    for row in trials:
        trials_of[row["job_id"]].append(row)
    return [
        ZeusRows(job=job, batch_sizes=sizes_of[job["job_id"]], trials=trials_of[job["job_id"]])
        for job in sorted(jobs, key=lambda job: str(job["job_id"]))
    ]
