from datetime import UTC, datetime
from typing import ClassVar

import pytest
from sqlalchemy import (
    Column,
    Dialect,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    bindparam,
    insert,
    select,
)
from sqlalchemy.dialects.mysql.asyncmy import MySQLDialect_asyncmy

from bso.service.errors import Unstorable
from bso.storage.rows import Moment
from bso.storage.statement_text import LASTING_COLUMNS, StatementText, literal

THINGS = Table(
    "things",
    MetaData(),
    Column("number", Integer),
    Column("name", String(50)),
    Column("size", Float),
    Column("at", Moment),
)
DIALECT = MySQLDialect_asyncmy()
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "1"),
        (False, "0"),
        (-(2**63), "-9223372036854775808"),
        (0.1, "0.1"),
        (1e-300, "1e-300"),
        (AT.replace(tzinfo=None), "'2026-01-02 03:04:05.000006'"),
        ("plain", "'plain'"),
        ("it's", "'it''s'"),
        ("a\\'; DROP TABLE job; -- ", "'a\\\\''; DROP TABLE job; -- '"),
        ("\\", "'\\\\'"),
    ],
)
def test_a_value_as_text(value: object, text: str) -> None:
    assert literal(value) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_sql_lacks_has_no_text(value: float) -> None:
    with pytest.raises(Unstorable, match="SQL has no number"):
        literal(value)


def test_a_value_of_an_unknown_kind_has_no_text() -> None:
    with pytest.raises(Unstorable, match="cannot be stored"):
        literal(b"bytes")


def test_a_string_that_only_looks_like_text_has_no_text() -> None:
    class Name(str):
        __slots__ = ()

    with pytest.raises(Unstorable, match="cannot be stored"):
        literal(Name("x"))


def test_gaps_take_values_and_lists_of_values() -> None:
    asked = select(THINGS.c.number).where(
        THINGS.c.name.in_(bindparam("names", expanding=True)), THINGS.c.size > 0.5, THINGS.c.at < bindparam("at")
    )
    text = StatementText(asked, DIALECT)
    assert text.with_values({"names": ["%s", "b'"], "at": AT}).endswith(
        "WHERE things.name IN ('%s','b''') AND things.size > 0.5 AND things.at < '2026-01-02 03:04:05.000006'"
    )
    assert "IN (NULL)" in text.with_values({"names": [], "at": AT})


def test_rows_become_as_few_insertions_as_fit() -> None:
    text = StatementText(insert(THINGS), DIALECT)
    rows = [{"number": number, "name": "ü" * 10, "size": None, "at": AT} for number in range(5)]
    [(whole, count)] = text.with_rows(rows, most_bytes=1000, packet_limit=1000)
    assert (whole.count("üüüüüüüüüü"), count) == (5, 5)
    parts = list(text.with_rows(rows, most_bytes=140, packet_limit=1000))
    assert [number for _, number in parts] == [2, 2, 1]
    assert all(part.startswith("INSERT INTO things (number, name, size, at) VALUES (") for part, _ in parts)
    with pytest.raises(Unstorable, match="max_allowed_packet"):
        list(text.with_rows(rows, most_bytes=40, packet_limit=100))
    assert list(text.with_rows([], most_bytes=40, packet_limit=100)) == []


class Counted(TypeDecorator[str]):
    """Text that counts how often it was made ready for the driver."""

    impl = String
    cache_ok = True
    bound: ClassVar[list[str]] = []

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Note it."""
        self.bound.append(str(value))
        return value


def test_what_stays_the_same_of_a_row_is_written_once() -> None:
    columns = (Column("number", Integer), Column("name", Counted), Column("size", Float))
    text = StatementText(insert(Table("rows", MetaData(), *columns, info={LASTING_COLUMNS: 2})), DIALECT)

    def written(name: str, size: float) -> str:
        rows = [{"number": 1, "name": name, "size": size}]
        [(insertion, _)] = text.with_rows(rows, most_bytes=1000, packet_limit=1000)
        return insertion

    assert written("it's", 0.5).endswith("VALUES (1,'it''s',0.5)")
    assert written("it's", 0.7).endswith("VALUES (1,'it''s',0.7)")
    assert written("its", 0.7).endswith("VALUES (1,'its',0.7)")
    assert Counted.bound == ["it's", "its"]


def test_text_that_is_no_unicode_has_no_text() -> None:
    with pytest.raises(Unstorable, match="surrogates not allowed"):
        literal("half an emoji: \ud83d")


def test_a_row_larger_than_a_request_should_be_goes_alone() -> None:
    text = StatementText(insert(THINGS), DIALECT)
    rows = [{"number": number, "name": "x" * 200} for number in range(2)]
    assert [number for _, number in text.with_rows(rows, most_bytes=100, packet_limit=1000)] == [1, 1]


def test_what_was_fetched_is_read_by_the_types_of_its_columns() -> None:
    text = StatementText(select(THINGS.c.number, THINGS.c.at.label("then")), DIALECT)
    assert text.read([(1, AT.replace(tzinfo=None))]) == [{"number": 1, "then": AT}]
