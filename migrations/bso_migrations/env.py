"""Alembic's environment: runs the revisions over a connection that bso_migrations.commands has opened, or offline."""

from __future__ import annotations

from alembic import context

from bso.storage.schema import VERSION_TABLE
from bso.storage.tables import metadata

config = context.config
connection = config.attributes.get("connection")

context.configure(
    connection=connection,
    dialect_name=None if connection is not None else config.attributes["dialect"],
    output_buffer=config.output_buffer if connection is None else None,
    literal_binds=connection is None,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    compare_type=True,
    # A database that rolls DDL back gets all or nothing of a revision; SQLite gets all or nothing of the upgrade.
    transaction_per_migration=connection is None or connection.dialect.name != "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
