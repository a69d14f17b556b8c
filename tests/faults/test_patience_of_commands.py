"""How long a database waits for a command of an operator that has fallen silent: for longer than for a worker."""

from pathlib import Path

import pytest

from tests.integration.replay.test_commands import Bso
from tools.private_servers import MariaDB

TEN_MINUTES, AN_HOUR = "600", "3600"


@pytest.mark.parametrize(
    ("command", "patience_s"),
    [
        (("migrate",), AN_HOUR),
        (("replay", "rebuild", "--yes"), TEN_MINUTES),
        (("events", "prune", "--yes", "--before", "2026-01-01", "--export", "{folder}/events.jsonl"), TEN_MINUTES),
    ],
    ids=["migrate", "rebuild", "prune"],
)
def test_commands_that_hold_locks_for_long_may_be_silent_for_long(
    breakable_mariadb: MariaDB, tmp_path: Path, command: tuple[str, ...], patience_s: str
) -> None:
    url = breakable_mariadb.create_database()
    bso = Bso(url=url)
    if command != ("migrate",):
        bso.ok("migrate")
    breakable_mariadb.execute("SET GLOBAL log_output = 'TABLE'; SET GLOBAL general_log = 1")
    try:
        bso.ok(*(argument.format(folder=tmp_path) for argument in command))
    finally:
        breakable_mariadb.execute("SET GLOBAL general_log = 0")
    for name in ("net_read_timeout", "net_write_timeout", "idle_transaction_timeout"):
        assert _settings(breakable_mariadb, url.rpartition("/")[2], name) == {patience_s}


def _settings(server: MariaDB, database: str, name: str) -> set[str]:
    """What sessions in a database have set a variable to."""
    return set(
        server.execute(
            f"SELECT REGEXP_SUBSTR(argument, '(?<=\\\\b{name} = )[0-9]+') FROM mysql.general_log WHERE argument "
            f"LIKE 'SET SESSION%{name} = %' AND thread_id IN (SELECT thread_id FROM mysql.general_log "
            f"WHERE command_type = 'Connect' AND argument LIKE '% on {database} %')"
        ).split()
    )
