"""Check the coverage that a run measured: branches of the domain and of policies, and everything of the whole.

Usage: python -m tools.check_coverage REPORT.json      (as `coverage json` writes it)
"""

import json
import sys
from pathlib import Path
from typing import Any

RULES = ("bso/domain/", "bso/policies/")
LEAST_BRANCHES_OF_RULES = 95.0  # percent
LEAST_OF_ALL = 90.0  # percent of lines and branches


def main(report: Path) -> int:
    """Print what was reached beside what is asked; 1 if something falls short."""
    measured: dict[str, Any] = json.loads(report.read_text())
    reached = [
        ("branches of the domain and of policies", _branches(measured["files"], RULES), LEAST_BRANCHES_OF_RULES),
        ("lines and branches of everything", float(measured["totals"]["percent_covered"]), LEAST_OF_ALL),
    ]
    for what, percent, least in reached:
        print(f"coverage: {percent:.1f} % of the {what} (at least {least:.0f} %)")
    return int(any(percent < least for _, percent, least in reached))


def _branches(files: dict[str, Any], folders: tuple[str, ...]) -> float:
    summaries = [file["summary"] for name, file in files.items() if name.startswith(folders)]
    branches = sum(summary["num_branches"] for summary in summaries)
    covered = sum(summary["covered_branches"] for summary in summaries)
    return 100.0 * covered / branches if branches else 0.0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
