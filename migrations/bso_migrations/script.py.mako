"""${message}."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.steps import create_index, create_table, drop_index, drop_table

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One DDL step."""
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    """Undo it."""
    ${downgrades if downgrades else "raise NotImplementedError"}
