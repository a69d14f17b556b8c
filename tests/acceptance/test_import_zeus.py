"""``bso import zeus`` as it is installed: from Zeus' own variable to a job that goes on here."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.conftest import Command

ZEUS = Path(__file__).parents[1] / "integration" / "importing" / "zeus.sql"


@pytest.mark.slow
def test_jobs_of_zeus_are_taken_over_from_the_address_in_a_file(bso: Command, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "zeus.db")) as database:
        database.executescript(ZEUS.read_text())
    address = tmp_path / "address"
    address.write_text(f"sqlite+aiosqlite:///{tmp_path / 'zeus.db'}\n")
    bso.environment["ZEUS_BSO_DATABASE_URL_FILE"] = str(address)
    bso.ok("migrate")
    assert "3 jobs with 27 new trials would be taken over" in bso.ok("import", "zeus", "--dry-run")
    assert "3 jobs with 27 new trials taken over" in bso.ok("import", "zeus")
    assert "3 jobs with 0 new trials taken over" in bso.ok("import", "zeus")
    assert "no differences" in bso.ok("replay", "verify")
    assert "nightly" in bso.ok("jobs", "list")
