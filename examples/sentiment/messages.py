"""The slices that slice.py made, read back."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Texts, each with the number of its label."""

    texts: list[str]
    labels: list[int]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What slice.py wrote beside the slices."""
    try:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except OSError:
        sys.exit(f"there is no {folder / 'manifest.json'}: make the slices with slice.py, and name their folder")
    return manifest


def read_part(folder: Path, manifest: dict[str, Any], number: int, part: str) -> Messages:
    """One part, training or validation, of a slice."""
    slices = {entry["number"]: entry["folder"] for entry in manifest["slices"]}
    if number not in slices:
        sys.exit(f"there is no slice {number} in {folder}: it has 1 to {len(slices)}")
    numbers = {label: position for position, label in enumerate(manifest["labels"])}
    with (folder / slices[number] / f"{part}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Messages(texts=[row["text"] for row in rows], labels=[numbers[row["label"]] for row in rows])


def add_slice_arguments(parser: argparse.ArgumentParser) -> None:
    """Which slices, and which of them."""
    parser.add_argument("--slices", type=Path, required=True, help="the folder that slice.py made")
    parser.add_argument("--slice", type=int, metavar="N", help="the slice to train on (BSO_RECURRENCE_NUMBER)")
