"""Create the table power_profile."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE, ascii_text, long_text, moment, number, words
from bso_migrations.steps import create_table

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The latest measurements of a batch size on a hardware kind."""
    create_table(
        "power_profile",
        sa.Column("job_id", ascii_text(120), primary_key=True),
        sa.Column("batch_size", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("hardware_key", ascii_text(16), primary_key=True),
        sa.Column("gpu_model", words(1000), nullable=False),
        sa.Column("memory_mib", sa.BigInteger()),
        sa.Column("number_of_gpus", sa.Integer(), nullable=False),
        sa.Column("max_power_w", number(), nullable=False),
        sa.Column("energy_method", ascii_text(20), nullable=False),
        sa.Column("measurements", long_text(), nullable=False),
        sa.Column("recorded_at", moment(), nullable=False),
        **MYSQL_TABLE,
    )
