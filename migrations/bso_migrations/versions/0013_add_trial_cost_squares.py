"""Add cost_squares to trial."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import number
from bso_migrations.steps import add_column, drop_column

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Squared relative deviations of what epochs of the trial cost, summed; NULL: none."""
    add_column("trial", sa.Column("cost_squares", number()))


def downgrade() -> None:
    """Drop it, with what it holds."""
    drop_column("trial", "cost_squares")
