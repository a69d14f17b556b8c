"""The column types of the revisions. Released revisions never change: add new names here, change none."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

_MYSQL = ("mysql", "mariadb")

MYSQL_TABLE: dict[str, Any] = {
    f"{name}_{option}": value
    for name in _MYSQL
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def ascii_text(length: int) -> sa.types.TypeEngine[str]:
    """Short ASCII text, compared byte by byte."""
    return (
        sa.String(length)
        .with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)
        .with_variant(sa.String(length, collation="C"), "postgresql")
    )


def words(length: int) -> sa.types.TypeEngine[str]:
    """Text of any language."""
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def long_text() -> sa.types.TypeEngine[str]:
    """Text of any language and length."""
    return sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def number() -> sa.types.TypeEngine[float]:
    """A double."""
    return sa.Double().with_variant(mysql.DOUBLE(asdecimal=False), *_MYSQL)


def moment() -> sa.types.TypeEngine[Any]:
    """A moment in UTC with microseconds."""
    return sa.DateTime(timezone=False).with_variant(mysql.DATETIME(fsp=6), *_MYSQL)


def row_id() -> sa.types.TypeEngine[int]:
    """A number that the database counts up."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
