"""Read the rows of a labelled CSV one by one; an error names its line."""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

MOST_CHARACTERS_OF_A_FIELD = 10_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """A text with its label. ``time`` as it stands in the file, ``time_s`` the same as Unix time [s]."""

    line: int
    time: str
    time_s: float
    label: str
    text: str


class Malformed(Exception):
    """A row that cannot be used; the message says why."""


class Source:
    """The rows of a file, in its order. ``malformed`` counts the skipped ones: ``tolerate`` of them at most."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.malformed = 0
        self._path = Path(arguments.csv)
        self._arguments = arguments
        self._columns: dict[str, int] = {}
        self._line = 0

    def rows(self) -> Iterator[Row]:
        """Read the file; ends the program with one line where it cannot be read."""
        if not self._path.is_file():
            stop(f"there is no file {self._path}: give the CSV file to slice")
        csv.field_size_limit(MOST_CHARACTERS_OF_A_FIELD)
        opener: Any = gzip.open if self._path.suffix == ".gz" else open
        with opener(self._path, "rt", encoding=self._arguments.encoding, newline="") as file:
            try:
                yield from self._read(csv.reader(file, delimiter=self._arguments.delimiter, strict=True))
            except UnicodeDecodeError as error:
                self._stop(f"not {error.encoding} from here on or a little further: give --encoding")
            except (csv.Error, EOFError, gzip.BadGzipFile) as error:
                self._stop(f"not CSV: {error}")

    def _read(self, reader: Any) -> Iterator[Row]:
        self._line = 1
        names = self._arguments.columns
        self._columns = self._positions(names.split(",") if names else next(reader, []))
        self._line = reader.line_num + 1
        for cells in reader:
            try:
                yield self._row(cells)
            except Malformed as error:
                self._tell(error)
            self._line = reader.line_num + 1

    def _positions(self, header: Sequence[str]) -> dict[str, int]:
        columns = {name.strip().removeprefix("\ufeff"): position for position, name in enumerate(header)}
        wanted = (self._arguments.text, self._arguments.label, self._arguments.time)
        missing = [name for name in wanted if name is not None and name not in columns]
        if missing:
            has = ", ".join(columns)
            self._stop(f"no column {', '.join(missing)} in: {has} (--columns names those of a file that does not)")
        return columns

    def _row(self, cells: Sequence[str]) -> Row:
        if len(cells) != len(self._columns):
            raise Malformed(f"expected {len(self._columns)} fields, got {len(cells)}")
        label = cells[self._columns[self._arguments.label]].strip()
        text = " ".join(cells[self._columns[self._arguments.text]].split())
        if not label or not text:
            raise Malformed(f"the {'text' if label else 'label'} is empty")
        time = "" if self._arguments.time is None else cells[self._columns[self._arguments.time]].strip()
        return Row(self._line, time, self._seconds(time), label, text)

    def _seconds(self, time: str) -> float:
        if self._arguments.time is None:
            return 0.0
        try:
            return parse_time(time, self._arguments.time_format)
        except ValueError:
            wanted = self._arguments.time_format or "ISO 8601 or Unix seconds (else give --time-format)"
            raise Malformed(f"the time {time!r} is not {wanted}") from None

    def _tell(self, error: Malformed) -> None:
        self.malformed += 1
        if self.malformed > self._arguments.tolerate:
            self._stop(f"{error} (--tolerate N skips up to N such rows)")
        print(f"{self._path}, line {self._line}: skipped: {error}", file=sys.stderr)

    def _stop(self, problem: str) -> NoReturn:
        stop(f"{self._path}, line {self._line}: {problem}")


def parse_time(time: str, time_format: str | None) -> float:
    """Unix time [s]; a time without a zone is taken as UTC. Raises ValueError."""
    if time_format is None and re.fullmatch(r"-?\d+(\.\d+)?", time):
        return float(time)
    moment = datetime.strptime(time, time_format) if time_format else datetime.fromisoformat(time)  # noqa: DTZ007
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def ordered(rows: Iterable[Row], path: str) -> Iterator[Row]:
    """The rows, as long as time does not run backwards."""
    last: Row | None = None
    for row in rows:
        if last is not None and row.time_s < last.time_s:
            stop(f"{path}, line {row.line}: {row.time} comes after {last.time}: sort by time first, or give --sort")
        last = row
        yield row


def stop(problem: str) -> NoReturn:
    """End with one line."""
    sys.exit(f"slice.py: {problem}")
