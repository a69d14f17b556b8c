"""Statements of SQLAlchemy's as text with their values in it, for a server that takes several of them at once.

A statement is compiled once; what is left for each execution is to write the values into its gaps. MySQL and MariaDB
have no parameters in a request of several statements: every driver writes values as text there. The rules are those of
https://dev.mysql.com/doc/refman/9.0/en/string-literals.html. A quote is doubled, which ends no string in any mode of
the server, and a backslash is doubled. Sessions in the mode NO_BACKSLASH_ESCAPES would store that twice: they are not
used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Dialect, Executable, Insert, Select
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TupleType, TypeEngine

from bso.service.errors import Unstorable

_GAP = re.compile(r"(?<!%)%s|__\[POSTCOMPILE_\w+\]")
_Convert = Callable[[Any], Any]


class StatementText:
    """A statement, compiled for one server. Its gaps take the values of parameters, or of the columns of rows."""

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]  # all executables of ours have it
        assert isinstance(compiled, SQLCompiler)
        self._gaps = [(name, _binding(compiled.binds[name].type, dialect)) for name in compiled.positiontup or ()]
        self._nothing = {name: _nothing(compiled.binds[name].type) for name, _ in self._gaps}
        self._fixed: Mapping[str, Any] = compiled.params
        self._pieces = [piece.replace("%%", "%") for piece in _GAP.split(compiled.string)]
        if isinstance(statement, Insert):
            row = ", ".join(["%s"] * len(self._gaps))
            before, after = compiled.string.split(f"({row})")
            self._before, self._after = before.replace("%%", "%"), after.replace("%%", "%")
        self._columns = _results(statement, dialect) if isinstance(statement, Select) else ()

    def with_values(self, parameters: Mapping[str, Any]) -> str:
        """The statement with these parameters; a list stands for several values."""
        values = [(name, bind, parameters.get(name, self._fixed[name])) for name, bind in self._gaps]
        written = [_written(value, bind) or self._nothing[name] for name, bind, value in values]
        return "".join(part for pair in zip(self._pieces, [*written, ""], strict=True) for part in pair)

    def with_rows(
        self, rows: Sequence[Mapping[str, Any]], *, most_bytes: int, packet_limit: int
    ) -> Iterator[tuple[str, int]]:
        """Insertions of rows, each with the number of its rows: one, unless it had more than ``most_bytes``.

        Raises Unstorable where the insertion of one row alone is no smaller than ``packet_limit``.
        """
        waiting: list[str] = []
        size = 0
        for row in rows:
            values = [literal(bind(row.get(name))) for name, bind in self._gaps]
            text = f"({','.join(values)})"
            length = len(text) if text.isascii() else len(text.encode())
            size_alone = length + len(self._before) + len(self._after)
            if size_alone >= packet_limit:
                limit = f"the server's max_allowed_packet of {packet_limit}"
                raise Unstorable(f"a statement of {size_alone} bytes is larger than {limit}")
            if waiting and size + length > most_bytes:
                yield self._insertion(waiting)
                waiting, size = [], 0
            waiting.append(text)
            size += length
        if waiting:
            yield self._insertion(waiting)

    def _insertion(self, rows: Sequence[str]) -> tuple[str, int]:
        return f"{self._before}{','.join(rows)}{self._after}", len(rows)

    def read(self, rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
        """What the driver has fetched, by the names of the statement's columns."""
        return [
            {name: convert(value) for (name, convert), value in zip(self._columns, row, strict=True)} for row in rows
        ]


def literal(value: object) -> str:
    """A value as SQL text. Raises Unstorable for one that SQL lacks."""
    try:
        return _WRITERS[type(value)](value)
    except KeyError:
        raise Unstorable(f"a value of type {type(value).__name__} cannot be stored") from None


def _text(value: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Unstorable(f"a text cannot be stored: {error}") from error
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise Unstorable(f"SQL has no number {value}")
    return repr(value)


def _moment(value: datetime) -> str:
    return f"'{value.isoformat(' ', 'microseconds')}'"


_WRITERS: dict[type, Callable[[Any], str]] = {
    str: _text,
    int: str,
    float: _float,
    bool: lambda value: "1" if value else "0",
    type(None): lambda _: "NULL",
    datetime: _moment,
}


def _written(value: object, bind: _Convert) -> str:
    if isinstance(value, list):
        return ",".join(_written(each, bind) for each in value)
    if isinstance(value, tuple):
        return f"({','.join(map(literal, value))})"
    return literal(bind(value))


def _nothing(of: TypeEngine[Any]) -> str:
    """What stands for no values: nothing is equal to it."""
    return f"({','.join(['NULL'] * len(of.types))})" if isinstance(of, TupleType) else "NULL"


def _binding(of: TypeEngine[Any], dialect: Dialect) -> _Convert:
    return of.dialect_impl(dialect).bind_processor(dialect) or _as_it_is


def _results(statement: Select[Any], dialect: Dialect) -> tuple[tuple[str, _Convert], ...]:
    return tuple(
        (str(column.key), column.type.dialect_impl(dialect).result_processor(dialect, None) or _as_it_is)
        for column in statement.selected_columns
    )


def _as_it_is(value: Any) -> Any:
    return value
