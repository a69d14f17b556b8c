"""Column types that mean the same in every database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Dialect, Double, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator, TypeEngine

from bso.domain.identifiers import MAX_LENGTH

_MYSQL = ("mysql", "mariadb")


class Moment(TypeDecorator[datetime]):
    """A moment with microseconds: aware in Python, UTC without a zone in the database."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """DATETIME(6) where DATETIME alone would round to seconds."""
        if dialect.name in _MYSQL:
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime(timezone=False))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; a moment without a zone is a bug."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a moment needs a time zone, got {value!r}")
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


def ascii_text(length: int = MAX_LENGTH) -> TypeEngine[str]:
    """Short ASCII text, compared and sorted byte by byte."""
    return (
        String(length)
        .with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)
        .with_variant(String(length, collation="C"), "postgresql")
    )


def words(length: int) -> TypeEngine[str]:
    """Text of any language up to a length in characters."""
    return String(length).with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def long_text() -> TypeEngine[str]:
    """Text of any language and length, JSON included: kept character by character, never normalised."""
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def number() -> TypeEngine[float]:
    """A double: FLOAT columns lose digits. Never NaN or infinite, which MySQL refuses."""
    return Double().with_variant(mysql.DOUBLE(asdecimal=False), *_MYSQL)
