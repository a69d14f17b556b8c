"""Create the table job."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE, ascii_text, long_text, moment, words
from bso_migrations.steps import create_table

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One row per job."""
    create_table(
        "job",
        sa.Column("job_id", ascii_text(120), primary_key=True),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("owner", words(255)),
        sa.Column("granted_to", words(500)),
        sa.Column("is_deleted", sa.Boolean()),
        sa.Column("version_number", sa.Integer()),
        sa.Column("version", words(120)),
        sa.Column("policy", ascii_text(64)),
        sa.Column("last_trial_number", sa.BigInteger()),
        sa.Column("spec", long_text()),
        sa.Column("state", long_text()),
        sa.Column("created_at", moment()),
        sa.Column("changed_at", moment()),
        indexes={"ix_job_owner": ["owner"], "ix_job_granted": ["granted_to"]},
        **MYSQL_TABLE,
    )
