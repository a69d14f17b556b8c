"""Cut a time-ordered, labelled CSV into slices of a sliding window: one slice for each recurrence of a training.

    python slice.py tweets.csv slices --text text --label label --time time --window 30d --stride 7d
    python slice.py tweets.csv slices --text text --label label --window 500000 --stride 29729

This is how Capriccio, the drifting data set of Zeus, was made of Sentiment140: each slice is what a training finds on
its day, the newest part of it is held out for validation, and the next day's window has moved on. The file is read
once and never held in memory. Slices are numbered from 1, as `bso recur` numbers recurrences; manifest.json lists
them. The folder appears when all is done. Needs only Python.
"""

from __future__ import annotations

import argparse
import codecs
import csv
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rows import Row, Source, ordered, stop

UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
MOST_OPEN_SLICES = 100
COLUMNS = ("time", "label", "text")


class Slice:
    """A slice being written: what lies before ``split`` is for training, the rest, up to ``end``, for validation."""

    def __init__(self, folder: Path, *, split: float, end: float) -> None:
        self.end = end
        self.folder = folder
        self.counts = Counter[str]()
        self.labels = Counter[str]()
        self._split = split
        self._times: list[str] = []
        folder.mkdir(parents=True)
        paths = {part: folder / f"{part}.csv" for part in ("training", "validation")}
        self._files = {part: path.open("w", encoding="utf-8", newline="") for part, path in paths.items()}
        self._writers = {part: csv.writer(file) for part, file in self._files.items()}
        for writer in self._writers.values():
            writer.writerow(COLUMNS)

    def add(self, row: Row, position: float) -> None:
        """Write a row to the part that it belongs to."""
        part = "training" if position < self._split else "validation"
        self._writers[part].writerow((row.time, row.label, row.text))
        self.counts[part] += 1
        self.labels[row.label] += 1
        self._times = [*self._times[:1], row.time]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def entry(self, number: int) -> dict[str, Any]:
        """What the manifest says of it."""
        return {
            "number": number,
            "folder": self.folder.name,
            "first_time": self._times[0],
            "last_time": self._times[-1],
            "training_rows": self.counts["training"],
            "validation_rows": self.counts["validation"],
            "labels": dict(sorted(self.labels.items())),
        }


class Slicer:
    """Writes each row to every slice whose window covers it. Positions are rows, or seconds, from the first row on."""

    def __init__(self, folder: Path, *, window: float, stride: float, training: float) -> None:
        self.entries: list[dict[str, Any]] = []
        self.dropped = 0
        self._folder = folder
        self._window = window
        self._stride = stride
        self._training = training
        self._open: list[Slice] = []
        self._begun = 0

    def add(self, row: Row, position: float) -> None:
        """Take the next row; positions never fall."""
        self._end_until(position)
        while position >= (begin := self._begun * self._stride):
            self._begun += 1
            if position < begin + self._window:
                folder = self._folder / f"unfinished-{self._begun}"
                self._open.append(Slice(folder, split=begin + self._training, end=begin + self._window))
            else:
                self.dropped += 1  # nothing at all happened in this window
        for one in self._open:
            one.add(row, position)

    def finish(self, position: float) -> None:
        """Keep the slices whose window is whole at ``position``, and drop the others."""
        self._end_until(position)
        for one in self._open:
            one.close()
            shutil.rmtree(one.folder)

    def _end_until(self, position: float) -> None:
        while self._open and self._open[0].end <= position:
            one = self._open.pop(0)
            one.close()
            if one.counts["training"] and one.counts["validation"]:
                number = len(self.entries) + 1
                one.folder = one.folder.rename(self._folder / f"slice-{number:04d}")
                self.entries.append(one.entry(number))
            else:
                self.dropped += 1
                shutil.rmtree(one.folder)


def size_of(words: str) -> tuple[float, bool]:
    """A window or stride: (rows, False) or (seconds, True)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw]?)", words)
    if match is None or float(match[1]) <= 0 or (not match[2] and "." in match[1]):
        raise argparse.ArgumentTypeError(f"expected rows (500000) or a time (90m, 12h, 30d, 4w), got {words!r}")
    return float(match[1]) * UNITS_S.get(match[2], 1.0), bool(match[2])


def share_of(words: str) -> float:
    """A share between 0 and 1, both excluded."""
    if not 0.0 < (share := float(words)) < 1.0:
        raise argparse.ArgumentTypeError(f"expected a share between 0 and 1, got {words}")
    return share


def encoding_of(words: str) -> str:
    """An encoding that Python knows."""
    try:
        return codecs.lookup(words).name
    except LookupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", help="the file, which may be compressed (.gz)")
    parser.add_argument("out", type=Path, help="the folder to make")
    parser.add_argument("--text", default="text", help="the column of texts (text)")
    parser.add_argument("--label", default="label", help="the column of labels (label)")
    parser.add_argument("--time", help="the column of times; not needed where the window is given in rows")
    parser.add_argument("--window", type=size_of, required=True, help="what a slice spans: rows, or a time (30d)")
    parser.add_argument("--stride", type=size_of, required=True, help="from one slice's beginning to the next one's")
    parser.add_argument("--validation", type=share_of, default=0.1, help="the newest share of a slice, held out (0.1)")
    parser.add_argument("--columns", metavar="A,B,...", help="the columns' names, for a file that does not name them")
    parser.add_argument("--time-format", metavar="FORMAT", help="for strptime (default: ISO 8601 or Unix seconds)")
    parser.add_argument("--encoding", type=encoding_of, default="utf-8", help="latin-1, say (utf-8)")
    parser.add_argument("--delimiter", default=",", help="(,)")
    parser.add_argument("--sort", action="store_true", help="sort the rows by time first, in memory")
    parser.add_argument("--tolerate", type=int, default=0, metavar="N", help="skip up to N malformed rows (0)")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier run's slices")
    arguments = parser.parse_args(words)
    if arguments.window[1] != arguments.stride[1]:
        parser.error("--window and --stride must both be rows, or both be times")
    if (arguments.window[1] or arguments.sort) and arguments.time is None:
        parser.error("--time must name the column of times, for windows of time and for --sort")
    if arguments.window[0] / arguments.stride[0] > MOST_OPEN_SLICES:
        parser.error(f"--window may span {MOST_OPEN_SLICES} strides at most: so many slices are written at once")
    return arguments


def make_slices(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Fill the folder; returns the manifest."""
    source = Source(arguments)
    in_order = ordered(source.rows(), arguments.csv)
    rows: Iterable[Row] = sorted(source.rows(), key=lambda row: row.time_s) if arguments.sort else in_order
    (window, is_time), (stride, _) = arguments.window, arguments.stride
    held_out = window * arguments.validation if is_time else max(1, round(window * arguments.validation))
    slicer = Slicer(folder, window=window, stride=stride, training=window - held_out)
    total, first_s, position = 0, 0.0, 0.0
    for row in rows:
        first_s = first_s if total else row.time_s
        position = row.time_s - first_s if is_time else float(total)
        slicer.add(row, position)
        total += 1
    slicer.finish(position if is_time else float(total))
    if not slicer.entries and slicer.dropped:
        stop(f"{arguments.csv}: no window holds rows to train on and to validate with: take a longer --window")
    if not slicer.entries:
        stop(f"{arguments.csv}: its {total} rows do not fill one --window: take a shorter one")
    return {
        "source": Path(arguments.csv).name,
        "labels": sorted({label for entry in slicer.entries for label in entry["labels"]}),
        "unit": "seconds" if is_time else "rows",
        "window": window,
        "stride": stride,
        "validation": arguments.validation,
        "rows": total,
        "skipped_rows": source.malformed,
        "dropped_slices": slicer.dropped,
        "slices": slicer.entries,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Slice a file as the command line says."""
    arguments = parsed(words)
    out: Path = arguments.out
    is_ours = (out / "manifest.json").is_file()
    if out.exists() and not (is_ours and arguments.overwrite) and (not out.is_dir() or any(out.iterdir())):
        stop(f"{out} is there already: give another folder" + (", or --overwrite" if is_ours else ""))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        manifest = make_slices(arguments, folder)
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        folder.rename(out)
    print(f"{len(manifest['slices'])} slices of {manifest['rows']} rows in {out}; {', '.join(manifest['labels'])}")
    if manifest["dropped_slices"]:
        print(f"{manifest['dropped_slices']} windows were left out: nothing in them, or no validation", file=sys.stderr)


if __name__ == "__main__":
    main()
