"""Create the table parked_job."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE, ascii_text, long_text, moment
from bso_migrations.steps import create_table

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Jobs whose commands cannot be decided for now, and such as have just recovered."""
    create_table(
        "parked_job",
        sa.Column("job_id", ascii_text(120), primary_key=True),
        sa.Column("parked_at", moment()),
        sa.Column("recovered_at", moment()),
        sa.Column("retry_at", moment(), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        **MYSQL_TABLE,
    )
