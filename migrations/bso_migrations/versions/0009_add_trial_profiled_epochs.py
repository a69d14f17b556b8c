"""Add profiled_epochs to trial."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import number
from bso_migrations.steps import add_column, drop_column

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Progress in epochs while power limits were profiled; NULL: none."""
    add_column("trial", sa.Column("profiled_epochs", number()))


def downgrade() -> None:
    """Drop it, with what it holds."""
    drop_column("trial", "profiled_epochs")
