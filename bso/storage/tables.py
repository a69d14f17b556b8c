"""The tables. Revisions in bso_migrations create them; a test holds both against each other."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    UniqueConstraint,
)

from bso.domain.policies import MAX_POLICY_NAME
from bso.schema.codec import MAX_EVENT_NAME
from bso.service.serialization import MOST_GRANTED
from bso.storage.rows import Moment, ascii_text, long_text, number, words
from bso.storage.statement_text import LASTING_COLUMNS

SCHEMA_REVISION = "0007"
"""The newest revision in bso_migrations, and the only one that this program writes to."""

metadata = MetaData()

_MYSQL_TABLE: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
_ROW_ID = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite numbers rows only where the column is exactly an INTEGER."""

job = Table(
    "job",
    metadata,
    Column("job_id", ascii_text(), primary_key=True),
    Column("last_seq", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("owner", words(255)),
    Column("granted_to", words(MOST_GRANTED)),
    Column("is_deleted", Boolean),
    Column("version_number", Integer),
    Column("version", words(120)),
    Column("policy", ascii_text(MAX_POLICY_NAME)),
    Column("last_trial_number", BigInteger),
    Column("spec", long_text()),
    Column("state", long_text()),
    Column("created_at", Moment),
    Column("changed_at", Moment),
    Index("ix_job_owner", "owner"),
    Index("ix_job_granted", "granted_to"),
    **_MYSQL_TABLE,
)
"""One row per job. Whatever changes in it, or in the job's trials, raises ``revision``: a worker that has read the
job in this revision does not read it again. Revisions only grow, also when a job is deleted and registered again, since
the first one is a time. granted_to names logins, as ``logins_granted`` writes them. A row with last_seq 0 and no state
is the lock of a job that is being registered: nobody else ever sees it committed."""

trial = Table(
    "trial",
    metadata,
    Column("job_id", ascii_text(), primary_key=True),
    Column("trial_number", BigInteger, primary_key=True, autoincrement=False),
    Column("trial_id", ascii_text(36), nullable=False),
    Column("version_number", Integer, nullable=False),
    Column("recurrence_id", ascii_text(), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("batch_size", BigInteger, nullable=False),
    Column("hardware_key", ascii_text(16), nullable=False),
    Column("gpu_model", words(1000), nullable=False),
    Column("memory_mib", BigInteger),
    Column("number_of_gpus", Integer, nullable=False),
    Column("max_power_w", number(), nullable=False),
    Column("energy_method", ascii_text(20), nullable=False),
    Column("reason", long_text(), nullable=False),
    Column("is_unbounded", Boolean, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("state", ascii_text(12), nullable=False),
    Column("lease_expires_at", Moment),
    Column("reports", BigInteger, nullable=False),
    Column("epoch", number(), nullable=False),
    Column("time_s", number(), nullable=False),
    Column("energy_j", number(), nullable=False),
    Column("is_energy_complete", Boolean, nullable=False),
    Column("metric", number()),
    Column("nonfinite_metric", ascii_text(9)),
    Column("nonfinite_metrics_in_a_row", Integer, nullable=False),
    Column("cost", number(), nullable=False),
    Column("bound", number()),
    Column("outcome", ascii_text(16)),
    Column("outcome_reason", long_text(), nullable=False),
    Column("is_over_bound", Boolean, nullable=False),
    Column("late_outcome", ascii_text(16)),
    Column("ended_at", Moment),
    Column("profiled_epochs", number(), nullable=False),
    Column("profiled_time_s", number(), nullable=False),
    Column("profiled_energy_j", number(), nullable=False),
    Column("learning_rate", long_text()),
    Column("cost_squares", number(), nullable=False),
    Column("silence_s", number()),
    Index("ix_trial_active", "job_id", "state"),
    Index("ix_trial_lease", "lease_expires_at"),
    info={LASTING_COLUMNS: 16},
    **_MYSQL_TABLE,
)
"""One row per trial. A metric that is NaN or infinite stands in nonfinite_metric, and metric is NULL. learning_rate is
JSON."""

event = Table(
    "event",
    metadata,
    Column("event_id", _ROW_ID, primary_key=True, autoincrement=True),
    Column("job_id", ascii_text(), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("type", ascii_text(MAX_EVENT_NAME), nullable=False),
    Column("trial_number", BigInteger),
    Column("epoch", number()),
    Column("payload", long_text(), nullable=False),
    Column("command_id", ascii_text(36), nullable=False),
    Column("part", SmallInteger, nullable=False),
    Column("reply_type", ascii_text(40)),
    Column("reply", long_text()),
    Column("recorded_at", Moment, nullable=False),
    Column("published_at", Moment),
    Column("log_epoch", BigInteger, nullable=False),
    UniqueConstraint("job_id", "seq", name="uq_event_job_seq"),
    UniqueConstraint("command_id", "part", name="uq_event_command_part"),
    Index("ix_event_unpublished", "published_at", "event_id"),
    Index("ix_event_epoch", "job_id", "trial_number", "epoch"),
    sqlite_autoincrement=True,
    **_MYSQL_TABLE,
)
"""The log: history, inbox (command_id and, in part 0, the reply) and outbox (published_at) at once. Append-only but
for published_at. Event ids are never used twice."""

power_profile = Table(
    "power_profile",
    metadata,
    Column("job_id", ascii_text(), primary_key=True),
    Column("batch_size", BigInteger, primary_key=True, autoincrement=False),
    Column("hardware_key", ascii_text(16), primary_key=True),
    Column("gpu_model", words(1000), nullable=False),
    Column("memory_mib", BigInteger),
    Column("number_of_gpus", Integer, nullable=False),
    Column("max_power_w", number(), nullable=False),
    Column("energy_method", ascii_text(20), nullable=False),
    Column("measurements", long_text(), nullable=False),
    Column("recorded_at", Moment, nullable=False),
    **_MYSQL_TABLE,
)
"""The latest measurements of a batch size on a hardware kind, as JSON."""

parked_job = Table(
    "parked_job",
    metadata,
    Column("job_id", ascii_text(), primary_key=True),
    Column("parked_at", Moment),
    Column("recovered_at", Moment),
    Column("retry_at", Moment, nullable=False),
    Column("reason", long_text(), nullable=False),
    **_MYSQL_TABLE,
)
"""Jobs whose commands cannot be decided for now: since parked_at, tried again at retry_at. A job that has recovered has
no parked_at, and its row goes a lease later. Writing such a row shows that the database can be written at all."""

token = Table(
    "token",
    metadata,
    Column("token_id", ascii_text(12), primary_key=True),
    Column("user_name", words(255), nullable=False),
    Column("granted", ascii_text(12), nullable=False),
    Column("jobs", words(120), nullable=False),
    Column("digest", ascii_text(64), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("lifetime_s", BigInteger),
    Column("expires_at", Moment),
    Column("revoked_at", Moment),
    Column("last_used_at", Moment),
    **_MYSQL_TABLE,
)
"""With which clients of gateways show who they are: the digest of a secret, in whose name it is used, and for what."""

log_epoch = Table(
    "bso_log_epoch",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("looked_at", Moment, nullable=False),
    Column("outdated_at", Moment),
    **_MYSQL_TABLE,
)
"""The epoch of the log, in one row: when a worker looked last, and when one found it older than it had been. looked_at
grows with each look, so a lower one shows that a backup was restored. Its name sorts before those of all tables that
workers write: a dump is restored in this order, so that workers see the restored row before there is another table that
they could write."""
