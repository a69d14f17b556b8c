"""${message}."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE
from bso_migrations.steps import create_table

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table."""
    ${upgrades if upgrades else "raise NotImplementedError"}
