"""Create the table event."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE, ascii_text, long_text, moment, number, row_id
from bso_migrations.steps import create_table

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """History, inbox and outbox."""
    create_table(
        "event",
        sa.Column("event_id", row_id(), primary_key=True, autoincrement=True),
        sa.Column("job_id", ascii_text(120), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", ascii_text(40), nullable=False),
        sa.Column("trial_number", sa.BigInteger()),
        sa.Column("epoch", number()),
        sa.Column("payload", long_text(), nullable=False),
        sa.Column("command_id", ascii_text(36), nullable=False),
        sa.Column("part", sa.SmallInteger(), nullable=False),
        sa.Column("reply_type", ascii_text(40)),
        sa.Column("reply", long_text()),
        sa.Column("recorded_at", moment(), nullable=False),
        sa.Column("published_at", moment()),
        sa.Column("log_epoch", sa.BigInteger(), nullable=False),
        sa.UniqueConstraint("job_id", "seq", name="uq_event_job_seq"),
        sa.UniqueConstraint("command_id", "part", name="uq_event_command_part"),
        indexes={
            "ix_event_unpublished": ["published_at", "event_id"],
            "ix_event_epoch": ["job_id", "trial_number", "epoch"],
        },
        sqlite_autoincrement=True,
        **MYSQL_TABLE,
    )
