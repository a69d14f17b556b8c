"""``bso recur``: run a training command again and again, as a scheduler would."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bso.domain.errors import Misconfigured
from bso_cli.options import JsonOption, UrlOption, with_options
from bso_cli.terminal import print_blocks, print_json, print_notice, print_result

if TYPE_CHECKING:
    from bso_cli.recurring.recurrences import RecurringRun


_AS_IN = "As in: bso recur 20 -- python train.py"

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[N] [-- COMMAND...]", help="How many recurrences, and the training command.", show_default=False
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurOptions:
    """How recurrences are run, and what is kept of them."""

    log_dir: Annotated[
        Path | None,
        typer.Option(
            "--log-dir", metavar="DIR", help="Keep the output of each launch, and go on from here when started again."
        ),
    ] = None
    summary: Annotated[
        bool, typer.Option("--summary", help="Only show the results of the run in --log-dir, which may still run.")
    ] = False
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="S", help="Set BSO_SEED: S for the first launch, then one more for each."),
    ] = None
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a recurrence that failed.")] = False
    launches: Annotated[int, typer.Option(min=1, metavar="N", help="Most launches of one recurrence.")] = 20
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="SEC", help="How long a stopped training may take to end.")
    ] = 30.0
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Trainings probe no epoch costs of other batch sizes (BSO_PROBING=off).")
    ] = False
    url: UrlOption = None
    as_json: JsonOption = False


@with_options
def recur(words: WordsArgument = None, *, options: RecurOptions) -> None:
    """Run a training command for N recurrences, one after the other, and follow its trials.

    **A recurrence** is one scheduled run that must yield a model. A command that exits with 75 asks for another batch
    size and is launched again in the same recurrence; so is one whose batch size failed under a launcher that hides
    the 75, as torchrun does. Any other failure stops, with the command's exit code. The trial of a command that was
    killed is finished as interrupted; one with a checkpoint (`state_dict()`) is suspended, so that it can be resumed.
    SIGTERM and Ctrl-C are passed on; a second Ctrl-C kills the command.

    **The command finds** BSO_URL, BSO_RECURRENCE_ID (one for all launches of a recurrence), BSO_RECURRENCE_NUMBER and
    BSO_LAUNCH_NUMBER (from 1) in its environment, and with --log-dir BSO_RECURRENCE_DIR, a folder for checkpoints.

    **With --log-dir** a run that was stopped or killed goes on when it is started again, in the same recurrence.

    **On a schedule**, let cron, systemd or Kubernetes begin a recurrence when it is due: docs/ml-engineer.md.

    Exits with 0 only if every recurrence ended with a model, or its command reported nothing to bso; with 1 if one
    ended without a model although its command exited with 0; with 128 + n after signal n; else with the first failed
    command's exit code.

    **Examples**

    Twenty nights at once: `bso recur 20 -- python train.py --data /data`

    Go on after a reboot: `bso recur --log-dir runs/nightly`

    Drifting data, a slice a day: `bso recur 30 -- sh -c 'python train.py --slice $BSO_RECURRENCE_NUMBER'`

    Four GPUs: `bso recur 20 --seed 1 -- torchrun --nproc-per-node 4 train.py`
    """
    from bso_cli.recurring.driver import RunDriver
    from bso_cli.recurring.recurrences import RunFolder

    with contextlib.ExitStack() as stack:
        folder = RunFolder(options.log_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bso-"))))
        if options.summary:
            if (known := folder.run()) is None:
                raise Misconfigured(f"{folder.path} holds no run: give the --log-dir that `bso recur` was started with")
            _show(known, as_json=options.as_json)
            return
        _wanted(folder.run(), words or [], options)  # what cannot be run is refused before anything is made
        lock = stack.enter_context(folder.occupied())
        run = _wanted(folder.run(), words or [], options)
        driver = RunDriver(run=run, folder=folder, lock=lock, options=options)
        code = driver.drive()
    _show(driver.run, as_json=options.as_json)
    raise typer.Exit(code or int(any(one.is_without_model for one in driver.run.recurrences)))


def _wanted(known: RecurringRun | None, words: list[str], options: RecurOptions) -> RecurringRun:
    """The run that ``[N] COMMAND...`` asks for: a new one, or the folder's with N recurrences from now on.

    Raises Misconfigured where the folder's has another command, typer.BadParameter where N or COMMAND is missing.
    """
    from bso_cli.programs import require_program
    from bso_cli.recurring.recurrences import RecurringRun

    has_count = bool(words) and words[0].isdecimal()
    count = int(words[0]) if has_count else 0
    command = tuple(words[1:] if has_count else words)
    if has_count and not count:
        raise typer.BadParameter(f"how many recurrences? expected at least 1, got {words[0]}. {_AS_IN}")
    if known is not None:
        if command not in ((), known.command):
            before, now = " ".join(known.command), " ".join(command)
            raise Misconfigured(
                f"{options.log_dir} holds another run: there, the command is {before!r}, not {now!r}. "
                "Leave it out to go on with that run, or use another folder"
            )
        return replace(known, count=count or known.count, seed=known.seed if options.seed is None else options.seed)
    if not command or not count:
        where = f"{options.log_dir} holds no run to go on with: " if options.log_dir else ""
        raise typer.BadParameter(f"{where}{_missing(words)}. {_AS_IN}")
    require_program(command[0])
    return RecurringRun(command=command, count=count, seed=options.seed)


def _missing(words: list[str]) -> str:
    """What is missing where N or COMMAND is, with what came instead."""
    if not words:
        return "how many recurrences? which command? got neither"
    if words[0].isdecimal():
        return f"which command? got only the number of recurrences, {words[0]}"
    return f"how many recurrences? expected a whole number before the command, got {words[0]!r}"


def _show(run: RecurringRun, *, as_json: bool) -> None:
    from bso_cli.recurring import summary

    recurrences = run.recurrences
    if warning := summary.several_jobs_in_words(recurrences):
        print_notice(Text(warning, style="yellow"))
    if as_json:
        print_json(summary.summary_fields(run))
        return
    if recurrences:
        print_blocks(summary.summary_table(recurrences))
        print_result("")
    for one in recurrences:
        if one.called_off is not None:
            print_result(f"recurrence {one.number} was called off: {one.called_off}")
    print_result(summary.total_in_words(run))
    if saved := summary.saving_in_words(recurrences):
        print_result(saved)
    for trial in [trial for one in recurrences for trial in one.trials][-1:]:
        for warning in trial.warnings:
            print_result(Text(warning, style="yellow"))
