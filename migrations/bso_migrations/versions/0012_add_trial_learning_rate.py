"""Add learning_rate to trial."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import long_text
from bso_migrations.steps import add_column, drop_column

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The learning rate, its reference batch size and scaling rule as JSON; NULL: not given."""
    add_column("trial", sa.Column("learning_rate", long_text()))


def downgrade() -> None:
    """Drop it, with what it holds."""
    drop_column("trial", "learning_rate")
