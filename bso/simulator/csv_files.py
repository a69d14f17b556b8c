"""Reading CSV files of traces, plain or compressed with xz, with errors that name the line."""

from __future__ import annotations

import csv
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bso.domain.foreign_text import text_of_cell
from bso.simulator.errors import InvalidTrace

MAX_COUNT = 10**9


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One line of a trace, by column."""

    path: Path
    line: int
    fields: Mapping[str, str]

    def text(self, column: str) -> str:
        """A field that must not be empty, as it was before `csv_cell` wrote it."""
        value = text_of_cell(self.fields[column].strip())
        if not value:
            raise self.invalid(column, "a name")
        return value

    def number(self, column: str) -> float:
        """A finite number."""
        value = self._float(column)
        if not math.isfinite(value):
            raise self.invalid(column, "a finite number")
        return value

    def positive(self, column: str) -> float:
        """A finite number above 0."""
        value = self._float(column)
        if not (math.isfinite(value) and value > 0):
            raise self.invalid(column, "a positive number")
        return value

    def count(self, column: str) -> int:
        """A whole number of 1 or more."""
        value = self._float(column)
        if not (value.is_integer() and 1 <= value <= MAX_COUNT):
            raise self.invalid(column, f"a whole number from 1 to {MAX_COUNT}")
        return int(value)

    def count_or_never(self, column: str) -> int | None:
        """A whole number of 1 or more; None where the field is empty or nan."""
        value = self.fields[column].strip().lower()
        return None if value in ("", "nan") else self.count(column)

    def invalid(self, column: str, expected: str) -> InvalidTrace:
        """The error that a field is not what was expected."""
        return InvalidTrace(self.path, self.line, f"{column} must be {expected}, got {self.fields[column]!r}")

    def _float(self, column: str) -> float:
        try:
            return float(self.fields[column])
        except ValueError:
            return math.nan


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[TraceRow]:
    """The lines of a CSV file that has at least these columns; a name that ends in ``.xz`` is decompressed.

    Raises InvalidTrace for a file that is no such CSV file, and OSError for one that cannot be read.
    """
    try:
        with _opened(path) as file:
            yield from _rows(path, csv.reader(file, strict=True), columns)
    except (lzma.LZMAError, EOFError) as error:
        raise InvalidTrace(path, None, f"is not a complete xz file ({error})") from error
    except UnicodeDecodeError as error:
        raise InvalidTrace(path, None, f"is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _rows(path: Path, reader: Iterator[list[str]], columns: Sequence[str]) -> Iterator[TraceRow]:
    line = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        missing = [column for column in columns if column not in header]
        if missing:
            raise InvalidTrace(
                path, 1, f"expected the columns {', '.join(columns)}; {', '.join(missing)} missing in {header}"
            )
        for line, values in enumerate(reader, start=2):
            if not any(map(str.strip, values)):
                continue
            if len(values) != len(header):
                raise InvalidTrace(path, line, f"expected {len(header)} fields, got {len(values)}: {values}")
            yield TraceRow(path, line, dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise InvalidTrace(path, line + 1, f"is not CSV: {error}") from error
