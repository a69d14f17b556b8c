"""Statements of SQLAlchemy's, compiled once, and as text with their values for a server that takes several at once.

What is left for each execution is to fill the gaps of a statement. MySQL and MariaDB have no parameters in a request
of several statements: every driver writes values as text there. The rules are those of
https://dev.mysql.com/doc/refman/9.0/en/string-literals.html. A quote is doubled, which ends no string in any mode of
the server, and a backslash is doubled. Sessions in the mode NO_BACKSLASH_ESCAPES would store that twice: they are not
used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import BindParameter, Dialect, Executable, Insert, Select, Table
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TupleType, TypeEngine

from bso.service.errors import Unstorable

_SEVERAL = r"__\[POSTCOMPILE_\w+\]"
_GAPS = {"format": re.compile(rf"(?<!%)%s|{_SEVERAL}"), "qmark": re.compile(rf"\?|{_SEVERAL}")}
LASTING_COLUMNS = "lasting_columns"
"""In the info of a table: how many of its columns, from the first on, keep their values for as long as a row lives."""
_MOST_LASTING = 4096
_Convert = Callable[[Any], Any]
_Compiled = TypeVar("_Compiled", bound="CompiledStatement")


@dataclass(frozen=True, slots=True)
class Gap:
    """A place in a statement that takes a value: which one, and how the driver wants to have it."""

    name: str
    parameter: BindParameter[Any]
    bind: _Convert

    def value_in(self, parameters: Mapping[str, Any]) -> Any:
        """The value of this parameter, or what it is if none is given."""
        return parameters.get(self.name, self.parameter.effective_value)


class CompiledStatement:
    """A statement, compiled once for one server: the text between its gaps, and the columns of what it reads."""

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]  # all executables of ours have it
        assert isinstance(compiled, SQLCompiler)
        self.text = compiled.string
        self.pieces = [piece.replace("%%", "%") for piece in _GAPS[dialect.paramstyle].split(compiled.string)]
        self.gaps = [
            Gap(name, compiled.binds[name], _binding(compiled.binds[name].type, dialect))
            for name in compiled.positiontup or ()
        ]
        self._columns = _results(statement, dialect) if isinstance(statement, Select) else ()

    def read(self, rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
        """What the driver has fetched, by the names of the statement's columns."""
        return [
            {name: convert(value) for (name, convert), value in zip(self._columns, row, strict=True)} for row in rows
        ]


class CompiledStatements(Generic[_Compiled]):
    """The frequent statements of one engine: each is compiled at its first use."""

    def __init__(self, kind: Callable[[Executable, Dialect], _Compiled], dialect: Dialect) -> None:
        self._kind = kind
        self._dialect = dialect
        self._known: dict[Executable, _Compiled] = {}

    def __getitem__(self, statement: Executable) -> _Compiled:
        """A statement that is kept somewhere, not one that is made for each execution."""
        found = self._known.get(statement)
        if found is None:
            found = self._known[statement] = self._kind(statement, self._dialect)
        return found


class StatementText(CompiledStatement):
    """A statement whose values are written into its text."""

    def __init__(self, statement: Executable, dialect: Dialect) -> None:
        super().__init__(statement, dialect)
        self._nothing = [_nothing(gap.parameter.type) for gap in self.gaps]
        if isinstance(statement, Insert):
            row = ", ".join(["%s"] * len(self.gaps))
            before, after = self.text.split(f"({row})")
            self._before, self._after = before.replace("%%", "%"), after.replace("%%", "%")
            assert isinstance(statement.table, Table)
            lasting = statement.table.info.get(LASTING_COLUMNS, 0)
            self._lasting, self._changing = self.gaps[:lasting], self.gaps[lasting:]
            self._lasting_texts: dict[tuple[Any, ...], str] = {}

    def with_values(self, parameters: Mapping[str, Any]) -> str:
        """The statement with these parameters; a list stands for several values."""
        written = [_written(gap.value_in(parameters), gap.bind) for gap in self.gaps]
        filled = [text or nothing for text, nothing in zip(written, self._nothing, strict=True)]
        return "".join(part for pair in zip(self.pieces, [*filled, ""], strict=True) for part in pair)

    def with_rows(
        self, rows: Sequence[Mapping[str, Any]], *, most_bytes: int, packet_limit: int
    ) -> Iterator[tuple[str, int]]:
        """Insertions of rows, each with the number of its rows: one, unless it had more than ``most_bytes``.

        Raises Unstorable where the insertion of one row alone is no smaller than ``packet_limit``.
        """
        waiting: list[str] = []
        size = 0
        for row in rows:
            values = [literal(gap.bind(row.get(gap.name))) for gap in self._changing]
            text = f"({self._lasting_text(row)}{','.join(values)})"
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

    def _lasting_text(self, row: Mapping[str, Any]) -> str:
        """The first values of a row, which are the same whenever it is written."""
        values = tuple([row.get(gap.name) for gap in self._lasting])
        text = self._lasting_texts.get(values)
        if text is None:
            if len(self._lasting_texts) >= _MOST_LASTING:
                self._lasting_texts.clear()
            text = "".join(f"{literal(gap.bind(value))}," for gap, value in zip(self._lasting, values, strict=True))
            self._lasting_texts[values] = text
        return text

    def _insertion(self, rows: Sequence[str]) -> tuple[str, int]:
        return f"{self._before}{','.join(rows)}{self._after}", len(rows)


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
