"""What a run is to be: what was asked for, held against what its folder says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from bso.cli.recurring.records import Run
from bso.domain.errors import Misconfigured


def count_and_command(words: list[str]) -> tuple[int | None, tuple[str, ...]]:
    """``[N] COMMAND...``: a first word that is a number is how many recurrences. Raises typer.BadParameter for none."""
    count = int(words[0]) if words and words[0].isdecimal() else None
    if count == 0:
        raise typer.BadParameter("N is 0: how many recurrences? At least 1")
    command = words if count is None else words[1:]
    return count, tuple(command[1:] if command[:1] == ["--"] else command)


def settled(found: Run | None, asked: Run, *, log_dir: Path | None) -> Run:
    """What to run: what was asked for, on top of what the folder says. Raises Misconfigured where they contradict."""
    if found is None:
        return complete(asked, log_dir=log_dir)
    for what, before, now in (
        ("the command", " ".join(found.command), " ".join(asked.command)),
        ("--job-id", found.job_id, asked.job_id),
        ("--seed", found.seed, asked.seed),
    ):
        if now not in (None, "", before):
            raise Misconfigured(
                f"{log_dir} holds another run: there, {what} is {before!r}, not {now!r}. "
                "Leave it out to go on with that run, or use another folder"
            )
    is_rescheduled = asked.every is not None or asked.cron is not None
    return replace(
        found,
        count=asked.count or found.count,
        every=asked.every if is_rescheduled else found.every,
        cron=asked.cron if is_rescheduled else found.cron,
    )


def complete(asked: Run, *, log_dir: Path | None) -> Run:
    """The same run. Raises typer.BadParameter where there is nothing to run, or no end and no schedule."""
    if not asked.command:
        where = f" ({log_dir} holds no run to go on with)" if log_dir is not None else ""
        raise typer.BadParameter(f"which command?{where} As in: bso recur 20 -- python train.py")
    if asked.count is None and asked.every is None and asked.cron is None:
        raise typer.BadParameter(
            "how many recurrences? As in: bso recur 20 -- python train.py; or on a schedule, with --every or --cron"
        )
    return asked
