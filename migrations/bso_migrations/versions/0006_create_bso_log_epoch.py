"""Create the table bso_log_epoch, with the first epoch."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE, moment
from bso_migrations.steps import create_table

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The epoch of the log, in one row; the first one began with the log."""
    create_table(
        "bso_log_epoch",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("looked_at", moment(), nullable=False),
        sa.Column("outdated_at", moment()),
        first_row={"number": "1", "looked_at": "'1970-01-01 00:00:00.000000'"},
        **MYSQL_TABLE,
    )
