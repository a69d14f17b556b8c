"""Add log_epoch to event."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.steps import add_column, drop_column

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The epoch of the log in which the event was recorded; all that are there belong to the first one."""
    add_column("event", sa.Column("log_epoch", sa.BigInteger, nullable=False, server_default="1"))


def downgrade() -> None:
    """Drop it, with what it holds."""
    drop_column("event", "log_epoch")
