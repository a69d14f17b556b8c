"""How commands fail: one clear sentence on standard error and an exit code, no traceback unless --debug asks for it."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from bso.cli.terminal import onlookers
from bso.domain.errors import BsoError, Rejected, Retryable

FAILURE = 1
USAGE = 2
INTERRUPTED = 130


class Refused(Rejected):
    """The optimizer refused what a command asked of it."""


class Commands(TyperGroup):
    """The command group that turns errors into sentences."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it raises on purpose ends the process with its exit code."""
        try:
            return super().invoke(ctx)
        except (BsoError, OSError) as error:
            if isinstance(error, BrokenPipeError) or ctx.params.get("debug"):
                raise
            complain(error)
            raise typer.Exit(exit_code_of(error)) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


def complain(error: BaseException) -> None:
    """Say what is wrong in one paragraph, and whether trying again can help."""
    onlookers().print(f"[bold red]bso:[/] {escape(sentence_of(error))}", soft_wrap=True)


def sentence_of(error: BaseException) -> str:
    """An error as words for a person."""
    if isinstance(error, OSError) and error.strerror:
        where = f" {error.filename}" if error.filename else ""
        return f"cannot use{where}: {error.strerror}"
    said = str(error) or (type(error).__doc__ or type(error).__name__).strip()
    if isinstance(error, Retryable) and "again" not in said:
        return f"{said} (it may work later: try again)"
    return said


def exit_code_of(error: BaseException) -> int:
    """75 where a training asks to be launched again, else 1."""
    return int(getattr(error, "exit_code", FAILURE))
