"""The exploration as one page: which batch sizes were tried, what they cost, and what recurrences cost."""

from __future__ import annotations

from html import escape
from pathlib import Path

from bso.drawing import job_pictures
from bso_cli.demo.summary import DemoSummary

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{job}</title></head>
<body style="font: 16px system-ui, sans-serif; margin: 2rem auto; max-width: 48rem">
<h1 style="font-size: 1.2rem">{headline}</h1>
{pictures}
</body>
</html>
"""


def draw(summary: DemoSummary, path: Path) -> Path:
    """Write the page, which needs nothing beside it."""
    drawn = job_pictures(summary.job, summary.trials, kind=summary.kind)
    pictures = "\n".join(f"<p>{svg}</p>" for svg in drawn.values())
    page = _PAGE.format(job=escape(summary.job.job_id), headline=escape(_headline(summary)), pictures=pictures)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _headline(summary: DemoSummary) -> str:
    """What recurrences save, exploration included."""
    default = summary.job.spec.default_batch_size
    if summary.saving is None:
        return f"{summary.job.job_id}: {len(summary.trials)} trials, no saving known yet"
    return f"A recurrence costs {summary.saving.words} than with the default {default}, all that was tried included"
