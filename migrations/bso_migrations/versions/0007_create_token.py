"""Create the table token."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE, ascii_text, moment, words
from bso_migrations.steps import create_table

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """With which clients of gateways show who they are."""
    create_table(
        "token",
        sa.Column("token_id", ascii_text(12), primary_key=True),
        sa.Column("user_name", words(255), nullable=False),
        sa.Column("granted", ascii_text(12), nullable=False),
        sa.Column("jobs", words(120), nullable=False),
        sa.Column("digest", ascii_text(64), nullable=False),
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("lifetime_s", sa.BigInteger()),
        sa.Column("expires_at", moment()),
        sa.Column("revoked_at", moment()),
        sa.Column("last_used_at", moment()),
        **MYSQL_TABLE,
    )
