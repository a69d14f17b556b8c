"""Add profiled_time_s to trial."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import number
from bso_migrations.steps import add_column, drop_column

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Seconds that passed while power limits were profiled; NULL: none."""
    add_column("trial", sa.Column("profiled_time_s", number()))


def downgrade() -> None:
    """Drop it, with what it holds."""
    drop_column("trial", "profiled_time_s")
