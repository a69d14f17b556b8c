"""Index event by published_at, event_id."""

from __future__ import annotations

from bso_migrations.steps import create_index, drop_index

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Finds events that nobody has published."""
    create_index("ix_event_unpublished", "event", ["published_at", "event_id"])


def downgrade() -> None:
    """Drop it."""
    drop_index("ix_event_unpublished", "event")
