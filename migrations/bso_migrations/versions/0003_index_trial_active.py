"""Index trial by job_id, state."""

from __future__ import annotations

from bso_migrations.steps import create_index, drop_index

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Finds the active trials of a job."""
    create_index("ix_trial_active", "trial", ["job_id", "state"])


def downgrade() -> None:
    """Drop it."""
    drop_index("ix_trial_active", "trial")
