"""How commands fail: one clear sentence on standard error and an exit code, no traceback unless --debug asks for it."""

from __future__ import annotations

import errno
from difflib import get_close_matches
from functools import partial
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperGroup

from bso.credentials import without_passwords
from bso.domain.errors import BsoError, Rejected, Retryable, WrongSetting
from bso_cli.terminal import print_notice, styled

_UsageError: Any = typer.BadParameter.__base__  # typer has no name for it
FAILURE = 1
USAGE = 2
INTERRUPTED = 130


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LEAST_ALIKE = 0.4  # 'list' is nearest to 'history' of all that `bso events` has


class CommandRefused(Rejected):
    """The optimizer refused what a command asked of it."""


class RefusedForNow(CommandRefused):
    """It may be asked again later."""


class CommandGroup(TyperGroup):
    """Commands below one name. Help shows flags without a value, and arguments as manual pages do.

    A wrong name has the nearest right one proposed.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """The group's own options."""
        return _shown_plainly(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None: there is none."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _shown_plainly(command.get_params(ctx))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first word names, and the words for it. Raises a usage error."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            nearest = get_close_matches(name, known, n=1, cutoff=_LEAST_ALIKE)
            proposed = f" Did you mean {nearest[0]!r}?" if nearest else ""
            ctx.fail(f"There is no command {name!r}.{proposed} The commands are {', '.join(known)}.")
        return super().resolve_command(ctx, args)


class Commands(CommandGroup):
    """The group of all commands, which turns errors into sentences."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it raises on purpose ends the process with its exit code."""
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            wrong = _wrong_value(error) if isinstance(error, typer.BadParameter) else error.message
            error.message = without_passwords(wrong)  # before it is broken into lines, a password with it
            raise
        except (BsoError, OSError) as error:
            if isinstance(error, BrokenPipeError) or ctx.params.get("debug"):
                raise
            complain(error)
            raise typer.Exit(exit_code_of(error)) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


def _shown_plainly(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""  # typer shows <bool>, as if a value had to be given
        if isinstance(param, TyperArgument):
            param.get_usage_pieces = partial(_usage, param)  # type: ignore[method-assign]  # typer has no setting for it, and writes {JOB} [[TRIAL]]
    return params


def _usage(argument: TyperArgument, _: Any) -> list[str]:
    """An argument in the usage line; a name with brackets of its own stays as it is."""
    name = argument.display_name_raw
    if name.startswith("["):
        return [name]
    repeated = "" if argument.nargs == 1 else "..."
    return [f"{name}{repeated}" if argument.required else f"[{name}]{repeated}"]


def _wrong_value(error: typer.BadParameter) -> str:
    """What came and what was expected, in place of the words of pydantic, which checks values for typer."""
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return error.message
    found = error.__cause__.errors()[0]
    came, limits = str(found["input"]), found.get("ctx", {})
    match found["type"]:
        case "int_parsing" | "int_from_float":
            return f"{came!r} is not a whole number"
        case "float_parsing":
            return f"{came!r} is not a number"
        case "greater_than_equal":
            return f"{came} is less than {limits['ge']:g}"
        case "less_than_equal":
            return f"{came} is more than {limits['le']:g}"
        case _:
            return error.message.removeprefix("Value error, ")


def complain(error: BaseException) -> None:
    """Say what is wrong in one paragraph, and whether trying again can help."""
    print_notice(styled(f"[bold red]bso:[/] {escape(sentence_of(error))}"))


def sentence_of(error: BaseException) -> str:
    """An error as words for a person."""
    if isinstance(error, OSError) and error.strerror:
        where = error.filename or ("the standard output, or a file" if error.errno in _FULL else "it")
        return f"cannot use {where}: {error.strerror}"
    said = str(error) or (type(error).__doc__ or type(error).__name__).strip()
    if isinstance(error, Retryable) and not error.needs_operator and "again" not in said:
        return f"{said} (it may work later: try again)"
    return said


def exit_code_of(error: BaseException) -> int:
    """75 where a training asks to be launched again, 2 for settings that are wrong, else 1."""
    return USAGE if isinstance(error, WrongSetting) else int(getattr(error, "exit_code", FAILURE))
