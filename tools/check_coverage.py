"""Check the coverage that a run measured: branches of the domain, and everything of the whole.

Usage: python -m tools.check_coverage REPORT.json      (as `coverage json` writes it)
"""

import json
import sys
from pathlib import Path
from typing import Any

DOMAIN = "bso/domain/"
LEAST_BRANCHES_OF_DOMAIN = 95.0  # percent
LEAST_OF_ALL = 90.0  # percent of lines and branches


def main(report: Path) -> int:
    """Print what was reached beside what is asked; 1 if something falls short."""
    measured: dict[str, Any] = json.loads(report.read_text())
    reached = [
        ("branches of the domain", _branches(measured["files"], DOMAIN), LEAST_BRANCHES_OF_DOMAIN),
        ("lines and branches of everything", float(measured["totals"]["percent_covered"]), LEAST_OF_ALL),
    ]
    for what, percent, least in reached:
        print(f"coverage: {percent:.1f} % of the {what} (at least {least:.0f} %)")
    return int(any(percent < least for _, percent, least in reached))


def _branches(files: dict[str, Any], folder: str) -> float:
    summaries = [file["summary"] for name, file in files.items() if name.startswith(folder)]
    branches = sum(summary["num_branches"] for summary in summaries)
    covered = sum(summary["covered_branches"] for summary in summaries)
    return 100.0 * covered / branches if branches else 0.0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
