"""Create the table trial."""

from __future__ import annotations

import sqlalchemy as sa

from bso_migrations.column_types import MYSQL_TABLE, ascii_text, long_text, moment, number, words
from bso_migrations.steps import create_table

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One row per trial."""
    create_table(
        "trial",
        sa.Column("job_id", ascii_text(120), primary_key=True),
        sa.Column("trial_number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("trial_id", ascii_text(36), nullable=False),
        sa.Column("version_number", sa.Integer(), nullable=False),
        sa.Column("recurrence_id", ascii_text(120), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.BigInteger(), nullable=False),
        sa.Column("hardware_key", ascii_text(16), nullable=False),
        sa.Column("gpu_model", words(1000), nullable=False),
        sa.Column("memory_mib", sa.BigInteger()),
        sa.Column("number_of_gpus", sa.Integer(), nullable=False),
        sa.Column("max_power_w", number(), nullable=False),
        sa.Column("energy_method", ascii_text(20), nullable=False),
        sa.Column("reason", long_text(), nullable=False),
        sa.Column("is_unbounded", sa.Boolean(), nullable=False),
        sa.Column("started_at", moment(), nullable=False),
        sa.Column("state", ascii_text(12), nullable=False),
        sa.Column("lease_expires_at", moment()),
        sa.Column("reports", sa.BigInteger(), nullable=False),
        sa.Column("epoch", number(), nullable=False),
        sa.Column("time_s", number(), nullable=False),
        sa.Column("energy_j", number(), nullable=False),
        sa.Column("is_energy_complete", sa.Boolean(), nullable=False),
        sa.Column("metric", number()),
        sa.Column("nonfinite_metric", ascii_text(9)),
        sa.Column("nonfinite_metrics_in_a_row", sa.Integer(), nullable=False),
        sa.Column("cost", number(), nullable=False),
        sa.Column("bound", number()),
        sa.Column("outcome", ascii_text(16)),
        sa.Column("outcome_reason", long_text(), nullable=False),
        sa.Column("is_over_bound", sa.Boolean(), nullable=False),
        sa.Column("late_outcome", ascii_text(16)),
        sa.Column("ended_at", moment()),
        sa.Column("profiled_epochs", number(), nullable=False),
        sa.Column("profiled_time_s", number(), nullable=False),
        sa.Column("profiled_energy_j", number(), nullable=False),
        sa.Column("learning_rate", long_text()),
        sa.Column("cost_squares", number(), nullable=False),
        sa.Column("silence_s", number()),
        indexes={"ix_trial_active": ["job_id", "state"], "ix_trial_lease": ["lease_expires_at"]},
        **MYSQL_TABLE,
    )
