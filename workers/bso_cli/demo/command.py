"""``bso demo``: the whole of bso on a real training job."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bso.credentials import handed_on
from bso.domain.errors import Misconfigured
from bso.domain.quantities import counted, watts
from bso_cli.access import NothingThere, reading, show_job
from bso_cli.options import DatabaseOption, JsonOption, UrlOption, here
from bso_cli.programs import Program
from bso_cli.refusals import CommandRefused
from bso_cli.settings import Places
from bso_cli.terminal import print_blocks, print_json, print_notice, print_result, styled

if TYPE_CHECKING:
    from bso_cli.demo.summary import DemoSummary

RECURRENCES, COMPARISONS = 15, 5
JOB, CONTROL = "demo-digits", "demo-digits-control"
DEFAULT = 256
_TRAIN = (sys.executable, str(Path(__file__).with_name("train.py")))


def demo(
    recurrences: Annotated[
        int, typer.Option("--recurrences", "-n", min=1, metavar="N", help="How often to train.")
    ] = RECURRENCES,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Keep job and pictures there. [default: the state directory]",
            show_default=False,
        ),
    ] = None,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a real classifier again and again until its best batch size is known.

    A small network learns to read handwritten digits, in a script like any other, which `bso recur` launches for each
    recurrence. Each gets a batch size, reports after every epoch, and is stopped early when it is hopeless. Run again,
    it goes on with what it has learnt.
    """
    _require_packages()
    places = _places(out, url, database_url)
    compared = asyncio.run(_recurrences_done(places, CONTROL))
    done = asyncio.run(_recurrences_done(places, JOB))
    going_on = f"goes on after {counted(done, 'recurrence')}" if done else "begins"
    where = places.optimizer_url.removeprefix("sqlite:///") if places.is_embedded else "the queue"
    print_notice(f"job {JOB} {going_on}, in {where}")
    with _control(places, COMPARISONS - compared):
        _recur(places, recurrences)
    summary = asyncio.run(_summary(places))
    from bso_cli.demo.picture import draw

    plot = draw(summary, places.state_dir.absolute() / f"{JOB}.html")
    if as_json:
        print_json(_fields(summary, plot, recurrences_now=recurrences))
    else:
        _show(summary, plot, places)


def _places(out: Path | None, url: str | None, database_url: str | None) -> Places:
    """Where the demo's job lives. A directory given with --out beats BSO_URL, since it asks for an embedded job."""
    places = here(url=url, database_url=database_url, state_dir=out)
    if out is not None and url is None:
        return dataclasses.replace(places, url=places.default_url, database_url=places.default_url)
    places.database("bso demo")
    return dataclasses.replace(places, database_url=places.optimizer_url) if places.is_embedded else places


@contextmanager
def _control(places: Places, count: int) -> Iterator[None]:
    """Train beside the demo's job, with the default batch size, so many times. Raises CommandRefused if that fails."""
    if count < 1:
        yield
        return
    print_notice(f"beside it, {counted(count, 'training')} with the default batch size {DEFAULT}, to compare")
    words = [*_TRAIN, *[str(DEFAULT)] * count]
    with subprocess.Popen(
        words, env=_environment(places), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield
            _, said = process.communicate()
        finally:
            process.terminate()
    if process.returncode:
        raise CommandRefused(f"the trainings to compare with failed: {said[-600:]}")


def _environment(places: Places) -> dict[str, str]:
    """That of the trainings, each of which computes on one core, so that costs can be compared."""
    own = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return handed_on(os.environ, "BSO_URL", places.optimizer_url) | own | {"BSO_STATE_DIR": str(places.state_dir)}


def _recur(places: Places, count: int) -> None:
    """Run ``bso recur`` as anybody would. Raises typer.Exit where that fails."""
    words = ["recur", str(count), "--", *_TRAIN]
    print_notice(f"bso {shlex.join(words)}")
    bso = (sys.executable, "-P", "-m", "bso_cli", *words)
    with Program(bso, env=_environment(places), stdout=subprocess.DEVNULL) as program:
        code = program.wait()
    if code:
        raise typer.Exit(code)


async def _recurrences_done(places: Places, job_id: str) -> int:
    try:
        found = (await show_job(places, job_id)).job
    except (NothingThere, CommandRefused):
        return 0
    return 0 if found is None else found.recurrences


async def _summary(places: Places) -> DemoSummary:
    from bso_cli.demo.summary import summarize

    shown = await show_job(places, JOB)
    async with reading(places.database("bso demo")) as store:
        trials, of_control = await store.trials(JOB), await store.trials(CONTROL)
    found = None if shown.job is None else summarize(shown.job, trials, of_control)
    if found is None:
        raise CommandRefused(f"no trial of job {JOB} has ended")
    return found


def _fields(summary: DemoSummary, plot: Path, *, recurrences_now: int) -> dict[str, object]:
    return {
        "job_id": JOB,
        "recurrences": summary.job.recurrences,
        "recurrences_now": recurrences_now,
        "trials": len(summary.trials),
        "default_batch_size": summary.job.spec.default_batch_size,
        "best_batch_size": summary.kind.best_batch_size,
        "saving": summary.saving and summary.saving.share,
        "saving_error": summary.saving and summary.saving.error,
        "best_saving": summary.best_saving and summary.best_saving.share,
        "best_saving_error": summary.best_saving and summary.best_saving.error,
        "default_cost": summary.default_cost,
        "energy_method": _estimate(summary),
        "batch_sizes": summary.kind.arms,
        "plot": str(plot),
    }


def _show(summary: DemoSummary, plot: Path, places: Places) -> None:
    from bso_cli.demo.summary import conclusion
    from bso_cli.jobs_printed import explained, kind_table

    made = kind_table(summary.kind, summary.job, summary.trials)
    made.notes.append(f"A cost is an energy here, {_estimate(summary)}.")
    print_blocks(made)
    print_result(explained(summary.kind.about_costs, has_means=True))
    print_result("")
    print_result(styled(conclusion(summary)))
    print_result(f"Pictures: {plot}")
    if places.is_embedded:  # the address of a broker holds a password
        setting = "" if places.url is None else f"BSO_URL={places.optimizer_url} "
        print_result(f"Why each batch size was chosen: {setting}{_program()} jobs why {JOB}")
        print_result(f"All of it in a browser: {setting}{_program()} dashboard")


def _estimate(summary: DemoSummary) -> str:
    return f"estimated: {watts(summary.trials[-1].hardware.max_power_w)} for each second of CPU time"


def _program() -> str:
    """How to type the command that this is: with its path where it was started by a path."""
    typed = Path(sys.argv[0])
    return str(typed) if typed.name == "bso" and not typed.is_absolute() else "bso"


def _require_packages() -> None:
    from importlib.util import find_spec

    if find_spec("sklearn") is None:
        raise Misconfigured("the demo needs sklearn, not installed here: pip install 'bso-optimizer[demo]'")
