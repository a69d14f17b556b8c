"""``bso recur``: run a training command again and again, as a scheduler would."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bso.domain.errors import Misconfigured
from bso_cli.options import JsonOption, UrlOption, with_options
from bso_cli.terminal import print_blocks, print_json, print_notice, print_result, styled

if TYPE_CHECKING:
    from bso_cli.recurring.recurrences import RecurringRun, RunFolder


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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Keep the output in --log-dir without showing it.")] = (
        False
    )
    summary: Annotated[
        bool, typer.Option("--summary", help="Only show the results of the run in --log-dir, which may still run.")
    ] = False
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="S", help="Set BSO_SEED: S for the first launch, then one more for each."),
    ] = None
    job_id: Annotated[
        str | None, typer.Option("--job-id", metavar="JOB", help="Set BSO_JOB_ID for the command.", show_default=False)
    ] = None
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a recurrence that failed.")] = False
    launches: Annotated[int, typer.Option(min=1, metavar="N", help="Most launches of one recurrence.")] = 20
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="SEC", help="How long a stopped training may take to end.")
    ] = 30.0
    url: UrlOption = None
    as_json: JsonOption = False


@with_options
def recur(words: WordsArgument = None, *, options: RecurOptions) -> None:
    """Run a training command for N recurrences, one after the other, and follow its trials.

    **A recurrence** is one occasion on which a model is wanted. A command that exits with 75 asks for another batch
    size and is launched again in the same recurrence; so is one whose batch size failed under a launcher that hides
    the 75, as torchrun does. Any other failure stops, with the command's exit code. The trial of a command that was
    killed is finished as interrupted. SIGTERM and Ctrl-C are passed on.

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

    if options.summary:
        _show(_run_so_far(options.log_dir), as_json=options.as_json)
        return
    if options.quiet and options.log_dir is None:
        raise typer.BadParameter("--quiet needs --log-dir DIR: without it the output would be lost")
    with _settled(words or [], options) as (run, folder, lock):
        driver = RunDriver(run=run, folder=folder, lock=lock, options=options)
        code = driver.drive()
    _show(driver.run, as_json=options.as_json)
    raise typer.Exit(code or int(any(one.is_without_model for one in driver.run.recurrences)))


def _count_and_command(words: list[str]) -> tuple[int | None, tuple[str, ...]]:
    """``[N] COMMAND...``: a first word that is a number is how many recurrences. Raises typer.BadParameter for 0."""
    count = int(words[0]) if words and words[0].isdecimal() else None
    if count == 0:
        raise typer.BadParameter("N is 0: how many recurrences? At least 1")
    command = words if count is None else words[1:]
    return count, tuple(command[1:] if command[:1] == ["--"] else command)


@contextlib.contextmanager
def _settled(words: list[str], options: RecurOptions) -> Iterator[tuple[RecurringRun, RunFolder, int | None]]:
    """What to run, its folder, and that folder's lock. What cannot be run is refused before anything is made."""
    from bso_cli.recurring.recurrences import RunFolder

    count, command = _count_and_command(words)
    if options.log_dir is None:
        run = _new_run(count, command, options)
        with tempfile.TemporaryDirectory(prefix="bso-recur-") as path:
            yield run, RunFolder(Path(path)), None
        return
    folder = RunFolder(options.log_dir)
    new = None if folder.holds_run() else _new_run(count, command, options)
    with folder.occupied() as lock:
        run = new or _known_run(folder.run(), count, command, options)
        folder.save(run)
        yield run, folder, lock


def _new_run(count: int | None, command: tuple[str, ...], options: RecurOptions) -> RecurringRun:
    from bso_cli.programs import require_program
    from bso_cli.recurring.recurrences import RecurringRun

    if not command:
        where = f" ({options.log_dir} holds no run to go on with)" if options.log_dir is not None else ""
        raise typer.BadParameter(f"which command?{where} As in: bso recur 20 -- python train.py")
    if count is None:
        raise typer.BadParameter("how many recurrences? As in: bso recur 20 -- python train.py")
    require_program(command[0])
    return RecurringRun(
        command=command, began_at=datetime.now(UTC), count=count, job_id=options.job_id, seed=options.seed
    )


def _known_run(run: RecurringRun, count: int | None, command: tuple[str, ...], options: RecurOptions) -> RecurringRun:
    """A folder's run, of ``count`` recurrences from now on. Raises Misconfigured where another one was asked for."""
    for what, before, now in (
        ("the command", " ".join(run.command), " ".join(command)),
        ("--job-id", run.job_id, options.job_id),
        ("--seed", run.seed, options.seed),
    ):
        if now not in (None, "", before):
            raise Misconfigured(
                f"{options.log_dir} holds another run: there, {what} is {before!r}, not {now!r}. "
                "Leave it out to go on with that run, or use another folder"
            )
    return replace(run, count=count or run.count)


def _run_so_far(log_dir: Path | None) -> RecurringRun:
    from bso_cli.recurring.recurrences import RunFolder
    from bso_cli.recurring.trials import TrialLog

    if log_dir is None:
        raise typer.BadParameter("--summary needs the --log-dir DIR of a run")
    folder = RunFolder(log_dir)
    if not folder.holds_run():
        raise Misconfigured(f"{log_dir} holds no run: give the --log-dir that `bso recur` was started with")
    run = folder.run()
    for last in [one for one in run.recurrences if one.is_open]:
        log = TrialLog(folder.trial_log(last))
        log.read_new()
        run = run.with_(replace(last, trials=log.trials))
    return run


def _show(run: RecurringRun, *, as_json: bool) -> None:
    from rich.markup import escape

    from bso_cli.recurring import summary

    recurrences = run.recurrences
    if (warning := summary.several_jobs_in_words(recurrences)) is not None:
        print_notice(styled(f"[yellow]{escape(warning)}[/]"))
    if as_json:
        print_json(summary.summary_fields(run))
        return
    if recurrences:
        print_blocks(summary.summary_table(recurrences))
        print_result("")
    for sentence in summary.called_off_in_words(recurrences):
        print_result(sentence)
    print_result(summary.total_in_words(run))
    if (found := summary.saving(recurrences)) is not None:
        print_result(summary.saving_in_words(found))
    for sentence in summary.warnings_of_last(recurrences):
        print_result(styled(f"[yellow]{escape(sentence)}[/]"))
