"""Measure, and print tables: ``python -m tests.benchmarks.first_run``."""

# pyright: reportMissingImports=false

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.first_run.cases import cases
from tests.benchmarks.first_run.tables import errors_table, measured_table
from tests.benchmarks.first_run.trainings import FIXED, TUNED, measure

TUNING_SEEDS = (1, 2, 3)
SEEDS = (201, 202, 203, 204, 205)
"""None of these was used before targets and rules were fixed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.first_run",
        description="Whether the noise of gradients predicts how epochs grow with the batch size.",
    )
    parser.add_argument("--quick", action="store_true", help="one seed for rates and two to measure, of two models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    every = list(cases())[: 2 if options.quick else None]
    tuning, seeds = (TUNING_SEEDS[:1], SEEDS[:2]) if options.quick else (TUNING_SEEDS, SEEDS)
    found = {case.name: (case, measure(case, tuning_seeds=tuning, seeds=seeds)) for case in every}
    sys.stdout.write(f"{measured_table(found)}\n")
    figures: dict[str, Any] = {
        name: {rule: asdict(measured) for rule, measured in by_rule.items()} for name, (_, by_rule) in found.items()
    }
    for rule in (TUNED, FIXED):
        table, errors = errors_table(found, rule)
        sys.stdout.write(f"\n{table}\n")
        figures[f"errors, {rule} rates"] = errors
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
