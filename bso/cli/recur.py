"""``bso recur``: run a training command again and again, as a scheduler would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bso.cli.options import JsonOption, UrlOption, here
from bso.cli.terminal import print_blocks, print_json, print_notice, print_result, styled
from bso.domain.errors import Misconfigured

if TYPE_CHECKING:
    from bso.cli.recurring.driver import Driver, Manner
    from bso.cli.recurring.folder import RunFolder
    from bso.cli.recurring.launching import Launcher
    from bso.cli.recurring.narration import SeenTrial
    from bso.cli.recurring.records import Recurrence, Run

STANDARD_ERROR = 2


def recur(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[N] [-- COMMAND...]", help="How many recurrences, and the training command.", show_default=False
        ),
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", metavar="PERIOD", help="One now, then one every 24h, 90m, 2d ... after it.", show_default=False
        ),
    ] = None,
    cron: Annotated[
        str | None,
        typer.Option("--cron", metavar="FIELDS", help="At these times, as cron reads them: '0 3 * * *'. Local time."),
    ] = None,
    catch_up: Annotated[
        bool, typer.Option("--catch-up", help="Make up at once for missed occasions, with one recurrence for them all.")
    ] = False,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            "--log-dir", metavar="DIR", help="Keep the output of each launch, and go on from here when started again."
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Keep the output in --log-dir without showing it.")
    ] = False,
    summary: Annotated[
        bool, typer.Option("--summary", help="Only show what the run in --log-dir has come to, also while it runs.")
    ] = False,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="S", help="Set BSO_SEED: S for the first launch, then one more for each."),
    ] = None,
    job_id: Annotated[
        str | None, typer.Option("--job-id", metavar="JOB", help="Set BSO_JOB_ID for the command.", show_default=False)
    ] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on after a recurrence that failed.")] = False,
    launches: Annotated[int, typer.Option(min=1, metavar="N", help="Most launches of one recurrence.")] = 20,
    grace: Annotated[
        float, typer.Option(min=0.0, metavar="SEC", help="How long a stopped training may take to end.")
    ] = 30.0,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a training command for N recurrences, or on a schedule, and follow what becomes of its trials.

    **A recurrence** is one occasion on which a model is wanted. A command that exits with 75 asks for another batch
    size and is launched again in the same recurrence; so is one whose batch size failed under a launcher that hides
    the 75, as torchrun does. Any other failure stops, with the command's exit code. The trial of a command that was
    killed is finished as interrupted. SIGTERM and Ctrl-C are passed on.

    **The command finds** in its environment BSO_URL, BSO_RECURRENCE_ID (one for all launches of a recurrence),
    BSO_RECURRENCE_NUMBER and BSO_LAUNCH_NUMBER (from 1), with --job-id BSO_JOB_ID, with --seed BSO_SEED, and with
    --log-dir BSO_RECURRENCE_DIR, a folder of this recurrence, for checkpoints and the like. The trial of a killed
    command that has left something there may be resumed by the next launch.

    **On a schedule** recurrences never overlap: occasions that pass while a training runs, or while nobody drives, are
    missed, and a notice names them. --catch-up makes up for them. Without N it goes on until it is stopped.

    **With --log-dir** a run that was stopped or killed goes on when it is started again, with the recurrence that it
    was in; what has ended is not repeated. A training that outlived its driver is followed to its end.

    Exits with 0 only if every recurrence ended with a model, or its command reported nothing to bso; with 1 if one
    ended without a model although its command exited with 0; with 128 + n after signal n; else with the first failed
    command's exit code.

    **Examples**

    Twenty nights at once: `bso recur 20 -- python train.py --data /data`

    Every night at three, for good: `bso recur --cron '0 3 * * *' --log-dir runs/nightly -- python train.py`

    Go on after a reboot: `bso recur --log-dir runs/nightly`

    Look at it meanwhile: `bso recur --summary --log-dir runs/nightly`

    Drifting data, a slice a day: `bso recur 30 -- sh -c 'python train.py --slice $BSO_RECURRENCE_NUMBER'`

    Four GPUs: `bso recur 20 --seed 1 -- torchrun --nproc-per-node 4 train.py`
    """
    from bso.cli.recurring.driver import Manner
    from bso.cli.recurring.records import Run
    from bso.cli.recurring.settling import count_and_command

    if summary:
        _show_summary(log_dir, as_json=as_json)
        return
    _check(every=every, cron=cron, quiet=quiet, log_dir=log_dir)
    count, command = count_and_command(words or [])
    asked = Run(command=command, began_at=_now(), count=count, every=every, cron=cron, job_id=job_id, seed=seed)
    with _kept(asked, log_dir=log_dir) as (run, folder):
        manner = Manner(
            environment={**os.environ, "BSO_URL": here(url=url).optimizer_url},
            launches=launches,
            keeps_going=keep_going,
            catches_up=catch_up,
            captures=log_dir is not None,
            shown=None if quiet else (sys.stderr if as_json else sys.stdout).buffer,
        )
        launcher = _launcher(manner, grace_s=grace, keeps_stdout_free=as_json)
        driver = _driver(run, folder, launcher, manner, log_dir=log_dir)
        code = asyncio.run(driver.drive())
        _show(run, driver.done, as_json=as_json)
    raise typer.Exit(code or int(any(one.is_without_model for one in driver.done)))


def _now() -> datetime:
    return datetime.now(UTC)


def _check(*, every: str | None, cron: str | None, quiet: bool, log_dir: Path | None) -> None:
    if every is not None and cron is not None:
        raise typer.BadParameter("--every and --cron are two schedules: give one")
    if quiet and log_dir is None:
        raise typer.BadParameter("--quiet needs --log-dir DIR: without it the output would be lost")


@contextlib.contextmanager
def _kept(asked: Run, *, log_dir: Path | None) -> Iterator[tuple[Run, RunFolder]]:
    """What to run, and the folder that keeps it. What cannot be run is refused before anything is made or kept."""
    from bso.cli.recurring.launching import require_program
    from bso.cli.recurring.schedule import schedule_of
    from bso.cli.recurring.settling import complete, settled

    if log_dir is None or not (log_dir / "run.json").exists():
        schedule_of(complete(asked, log_dir=log_dir))
        require_program(asked.command)
    with _folder(log_dir) as folder:
        run = settled(folder.run(), asked, log_dir=log_dir)
        schedule_of(run)
        folder.save_run(run)
        yield run, folder


@contextlib.contextmanager
def _folder(log_dir: Path | None) -> Iterator[RunFolder]:
    from bso.cli.recurring.folder import RunFolder

    if log_dir is None:
        with tempfile.TemporaryDirectory(prefix="bso-recur-") as path:
            yield RunFolder(Path(path))
        return
    folder = RunFolder(log_dir)
    with folder.occupied():
        yield folder


def _driver(run: Run, folder: RunFolder, launcher: Launcher, manner: Manner, *, log_dir: Path | None) -> Driver:
    from bso.cli.recurring.driver import Driver
    from bso.cli.recurring.schedule import schedule_of
    from bso.cli.recurring.telling import Telling

    return Driver(
        run=run,
        folder=folder,
        launcher=launcher,
        manner=manner,
        onlooker=Telling(count=run.count, log_dir=log_dir),
        clock=_now,
        new_id=lambda: str(uuid.uuid4()),
        schedule=schedule_of(run),
    )


def _launcher(manner: Manner, *, grace_s: float, keeps_stdout_free: bool) -> Launcher:
    from bso.cli.recurring.launching import Launcher
    from bso.cli.recurring.telling import tell

    async def finish(trial: SeenTrial, reason: str, *, may_resume: bool) -> None:
        from bso.cli.recurring.finishing import finish_as_interrupted

        await finish_as_interrupted(manner.environment["BSO_URL"], trial, reason, may_resume=may_resume)

    return Launcher(finish=finish, on_news=tell, grace_s=grace_s, stdout=STANDARD_ERROR if keeps_stdout_free else None)


def _show_summary(log_dir: Path | None, *, as_json: bool) -> None:
    from bso.cli.recurring.folder import RunFolder
    from bso.cli.recurring.summary import as_now

    if log_dir is None:
        raise typer.BadParameter("--summary needs the --log-dir DIR of a run")
    folder = RunFolder(log_dir)
    run = folder.run()
    if run is None:
        raise Misconfigured(f"{log_dir} holds no run: give the --log-dir that `bso recur` was started with")
    _show(run, as_now(folder), as_json=as_json)


def _show(run: Run, recurrences: list[Recurrence], *, as_json: bool) -> None:
    from rich.markup import escape

    from bso.cli.recurring.summary import (
        called_off_in_words,
        saving,
        saving_in_words,
        several_jobs_in_words,
        summary_fields,
        summary_table,
        total_in_words,
        warnings_of_last,
    )

    if (warning := several_jobs_in_words(recurrences)) is not None:
        print_notice(styled(f"[yellow]{escape(warning)}[/]"))
    if as_json:
        print_json(summary_fields(run, recurrences))
        return
    if recurrences:
        print_blocks(summary_table(recurrences))
        print_result("")
    for sentence in called_off_in_words(recurrences):
        print_result(sentence)
    print_result(total_in_words(run, recurrences))
    if (found := saving(recurrences)) is not None:
        print_result(saving_in_words(found))
    for sentence in warnings_of_last(recurrences):
        print_result(styled(f"[yellow]{escape(sentence)}[/]"))
