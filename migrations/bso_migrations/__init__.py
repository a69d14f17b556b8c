"""Create and upgrade the database schema."""

import logging

from bso_optimizer import require_own_package

require_own_package()

# Alembic logs its plugins at its import, and every revision, at INFO: not what a training's log is for.
if (_alembic := logging.getLogger("alembic")).level == logging.NOTSET:
    _alembic.setLevel(logging.WARNING)

from bso_migrations.commands import check, current, sql, upgrade

__all__ = ["check", "current", "sql", "upgrade"]
