"""Add profiled_energy_j to trial."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import number
from bso_migrations.steps import add_column, drop_column

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Joules consumed while power limits were profiled; NULL: none."""
    add_column("trial", sa.Column("profiled_energy_j", number()))


def downgrade() -> None:
    """Drop it, with what it holds."""
    drop_column("trial", "profiled_energy_j")
