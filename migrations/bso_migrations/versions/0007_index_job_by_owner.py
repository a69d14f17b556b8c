"""Index the table job by owner: the jobs of a login are counted before it registers another one."""

from __future__ import annotations

from bso_migrations.steps import create_index

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Not unique: a login owns many jobs."""
    create_index("ix_job_owner", "job", ["owner", "is_deleted"])
