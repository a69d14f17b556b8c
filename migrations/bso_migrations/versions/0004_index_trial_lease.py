"""Index trial by lease_expires_at."""

from __future__ import annotations

from bso_migrations.steps import create_index, drop_index

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Finds lapsed leases."""
    create_index("ix_trial_lease", "trial", ["lease_expires_at"])


def downgrade() -> None:
    """Drop it."""
    drop_index("ix_trial_lease", "trial")
