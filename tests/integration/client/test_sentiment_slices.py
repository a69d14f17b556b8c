"""The slicer of the sentiment example: windows, splits and numbers of slices, and what it says of bad files."""

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.servers import PATIENCE_S

SENTIMENT = Path(__file__).parents[3] / "examples" / "sentiment"


def slice_file(*arguments: object, code: int = 0) -> str:
    """Run slice.py; returns what it printed."""
    command = [sys.executable, str(SENTIMENT / "slice.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def write(path: Path, rows: Sequence[Sequence[object]], header: Sequence[str] = ("day", "mood", "words")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def daily(days: int, *, first: int = 1) -> list[list[object]]:
    """One row a day of January 2026."""
    return [
        [f"2026-01-{day:02d}", "sad" if day % 2 else "glad", f"message {day}"] for day in range(first, first + days)
    ]


def manifest(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return loaded


def texts(folder: Path, number: int, part: str) -> list[int]:
    """The numbers of the messages in one part of a slice."""
    with (folder / f"slice-{number:04d}" / f"{part}.csv").open(newline="", encoding="utf-8") as file:
        return [int(row["text"].split()[-1]) for row in csv.DictReader(file)]


COLUMNS = ("--time", "day", "--label", "mood", "--text", "words")


def test_windows_of_rows_slide_and_hold_out_their_newest_part(tmp_path: Path) -> None:
    source, out = write(tmp_path / "m.csv", daily(25)), tmp_path / "slices"
    slice_file(source, out, *COLUMNS, "--window", 10, "--stride", 5, "--validation", 0.2)

    assert texts(out, 1, "training") == list(range(1, 9))
    assert texts(out, 1, "validation") == [9, 10]
    assert texts(out, 2, "training") == list(range(6, 14))
    assert texts(out, 4, "validation") == [24, 25]
    assert [entry["number"] for entry in manifest(out)["slices"]] == [1, 2, 3, 4]  # a fifth would not be whole
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", *(f"slice-000{n}" for n in range(1, 5))]


def test_windows_of_time_cover_what_happened_then_however_much(tmp_path: Path) -> None:
    crowd: list[object] = ["2026-01-03T12:00:00Z", "glad", "message 3"]
    busy = [*daily(2), *([crowd] * 5), *daily(10, first=4)]
    source, out = write(tmp_path / "m.csv", busy), tmp_path / "slices"
    slice_file(source, out, *COLUMNS, "--window", "4d", "--stride", "2d", "--validation", "0.25")

    assert texts(out, 1, "training") == [1, 2, 3, 3, 3, 3, 3]
    assert texts(out, 1, "validation") == [4]
    assert texts(out, 2, "training") == [3, 3, 3, 3, 3, 4, 5]
    first = manifest(out)["slices"][0]
    assert (first["first_time"], first["last_time"]) == ("2026-01-01", "2026-01-04")
    assert first["labels"] == {"glad": 7, "sad": 1}


def test_windows_without_rows_are_left_out_and_the_rest_is_numbered_without_gaps(tmp_path: Path) -> None:
    source, out = write(tmp_path / "m.csv", [*daily(4), *daily(10, first=20)]), tmp_path / "slices"
    printed = slice_file(source, out, *COLUMNS, "--window", "4d", "--stride", "4d", "--validation", "0.5")

    assert [entry["number"] for entry in manifest(out)["slices"]] == [1, 2, 3]
    assert manifest(out)["dropped_slices"] == 4
    assert "4 windows were left out" in printed


def test_a_file_without_a_header_in_another_encoding_and_time_format_is_read(tmp_path: Path) -> None:
    lines = [f'"{4 * (n % 2)}","Mon Apr {n:02d} 22:19:45 PDT 2009","caf\xe9 {n}"' for n in range(1, 11)]
    source, out = tmp_path / "m.csv.gz", tmp_path / "slices"
    with gzip.open(source, "wt", encoding="latin-1") as file:
        file.write("\n".join(lines))
    zone = ("--time-format", "%a %b %d %H:%M:%S PDT %Y", "--encoding", "latin-1", "--columns", "label,date,text")
    slice_file(source, out, "--time", "date", *zone, "--window", "5d", "--stride", "2d", "--validation", "0.3")

    assert manifest(out)["labels"] == ["0", "4"]
    assert "café 1" in (out / "slice-0001" / "training.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2026-01-04,sad", "line 4: expected 3 fields, got 2"),
        ("2026-01-04,,words", "line 4: the label is empty"),
        ("2026-01-04,sad,  ", "line 4: the text is empty"),
        ("yesterday,sad,words", "line 4: the time 'yesterday' is not ISO 8601 or Unix seconds"),
        ("2025-12-31,sad,words", "line 4: 2025-12-31 comes after 2026-01-02: sort by time first, or give --sort"),
        ('2026-01-04,sad,"never closed', "line 4: not CSV: unexpected end of data"),
        ("2026-01-04,sad,\udce9", "not utf-8 from here on or a little further: give --encoding"),
    ],
)
def test_a_bad_row_is_reported_with_its_line_and_nothing_is_left_behind(tmp_path: Path, line: str, said: str) -> None:
    source = tmp_path / "m.csv"
    good = "day,mood,words\n2026-01-01,sad,one\n2026-01-02,glad,two\n"
    source.write_bytes((good + line + "\n").encode("utf-8", "surrogateescape"))
    printed = slice_file(source, tmp_path / "slices", *COLUMNS, "--window", 2, "--stride", 1, code=1)

    assert said in printed
    assert len(printed.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m.csv"]


def test_the_line_of_a_row_after_one_that_spans_lines_is_right(tmp_path: Path) -> None:
    source = tmp_path / "m.csv"
    source.write_text('day,mood,words\n2026-01-01,sad,"one\ntwo\nthree"\n2026-01-02,,four\n')

    assert "line 5: the label is empty" in slice_file(
        source, tmp_path / "slices", *COLUMNS, "--window", 2, "--stride", 1, code=1
    )


def test_bad_rows_are_skipped_up_to_a_number_and_counted(tmp_path: Path) -> None:
    rows = daily(6)
    rows.insert(2, ["", "", ""])
    source, out = write(tmp_path / "m.csv", rows), tmp_path / "slices"
    printed = slice_file(source, out, *COLUMNS, "--window", 4, "--stride", 2, "--tolerate", 1)

    assert "line 4: skipped" in printed
    assert manifest(out)["skipped_rows"] == 1
    assert texts(out, 1, "training") == [1, 2, 3]


def test_unordered_rows_can_be_sorted(tmp_path: Path) -> None:
    source, out = write(tmp_path / "m.csv", daily(10)[::-1]), tmp_path / "slices"
    slice_file(source, out, *COLUMNS, "--window", 10, "--stride", 10, "--sort")

    assert texts(out, 1, "training") == list(range(1, 10))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--label", "nix"), "no column text, nix in: day, mood, words"),
        ((*COLUMNS, "--window", "200"), "do not fill one --window"),
        ((*COLUMNS, "--window", "1"), "no window holds rows to train on and to validate with"),
        ((*COLUMNS, "--window", "4d"), "must both be rows, or both be times"),
        ((*COLUMNS, "--window", "4x"), "expected rows (500000) or a time"),
        (("--window", "1d", "--stride", "1d"), "--time must name the column of times"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    source = write(tmp_path / "m.csv", daily(8))
    command = [sys.executable, str(SENTIMENT / "slice.py"), str(source), str(tmp_path / "slices")]
    done = subprocess.run(
        [*command, "--window", "4", "--stride", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "slices").exists()


def test_earlier_slices_are_replaced_only_when_asked_for_and_nothing_else_ever_is(tmp_path: Path) -> None:
    source, out = write(tmp_path / "m.csv", daily(20)), tmp_path / "slices"
    slice_file(source, out, *COLUMNS, "--window", 4, "--stride", 2)
    assert "give another folder, or --overwrite" in slice_file(
        source, out, *COLUMNS, "--window", 8, "--stride", 4, code=1
    )
    slice_file(source, out, *COLUMNS, "--window", 8, "--stride", 4, "--overwrite")
    assert len(list(out.glob("slice-*"))) == len(manifest(out)["slices"]) == 4

    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").touch()
    assert "give another folder" in slice_file(
        source, home, *COLUMNS, "--window", 4, "--stride", 2, "--overwrite", code=1
    )
    assert (home / "thesis.tex").exists()


def test_a_large_file_is_sliced_without_being_held_in_memory(tmp_path: Path) -> None:
    source = tmp_path / "m.csv"
    with source.open("w", encoding="utf-8") as file:
        file.write("label,text\n")
        file.writelines(f"{n % 2},{'word ' * 200}{n}\n" for n in range(60_000))  # 60 MB
    code = (
        "import runpy, sys; sys.path.insert(0, sys.argv[1]); script = sys.argv[1] + '/slice.py'; "
        "sys.argv = ['slice.py', *sys.argv[2:]]; runpy.run_path(script, run_name='__main__'); "
        "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    command = [sys.executable, "-c", code, str(SENTIMENT), str(source), str(tmp_path / "slices")]
    done = subprocess.run(
        [*command, "--window", "50000", "--stride", "10000"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    assert int(done.stdout.splitlines()[-1]) < 40_000  # kB; the interpreter alone takes some 20 000


def test_generated_messages_drift_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        command = [sys.executable, str(SENTIMENT / "generate.py"), str(tmp_path / name), "--rows", "4000"]
        subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=True)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)

    def vocabulary(part: list[dict[str, str]]) -> set[str]:
        return {word for row in part for word in row["text"].split()}

    begin, before, after = vocabulary(rows[:1000]), vocabulary(rows[1000:2000]), vocabulary(rows[2000:3000])
    assert begin - before, "words fall out of use"
    assert len(after - before) > 2 * len(before - begin), "the language changes in the middle"
