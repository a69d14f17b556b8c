"""Index event by job_id, trial_number, epoch."""

from __future__ import annotations

from bso_migrations.steps import create_index, drop_index

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Finds what a trial reported for an epoch."""
    create_index("ix_event_epoch", "event", ["job_id", "trial_number", "epoch"])


def downgrade() -> None:
    """Drop it."""
    drop_index("ix_event_epoch", "event")
