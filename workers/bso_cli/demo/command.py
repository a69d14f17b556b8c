"""``bso demo``: the whole of bso on a real training job, in less than a minute."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bso.domain.errors import Misconfigured
from bso_cli.access import NothingThere, describe, reading
from bso_cli.options import DatabaseOption, JsonOption, UrlOption, here
from bso_cli.refusals import Refused
from bso_cli.settings import Places
from bso_cli.terminal import counted, onlookers, print_blocks, print_json, print_notice, print_result, styled

if TYPE_CHECKING:
    from bso.domain.trial import Trial
    from bso_cli.demo.summary import DemoSummary
    from bso_cli.demo.training import DemoJob

RECURRENCES = 30
PROCESSES = 3
WORKERS = 2


def demo(
    recurrences: Annotated[
        int, typer.Option("--recurrences", "-n", min=1, metavar="N", help="How often to train.")
    ] = RECURRENCES,
    queue: Annotated[
        bool,
        typer.Option(
            "--queue", help="Through a private RabbitMQ, a private MariaDB and two workers, started for this."
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, metavar="N", help="Trainings at the same time. [1, with --queue 3]", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Where the data's splits and the bandit's draws begin.")
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Keep job and picture there. [default: the state directory]",
            show_default=False,
        ),
    ] = None,
    url: UrlOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a real classifier again and again until its best batch size is known.

    A small network learns to read handwritten digits. Each recurrence gets a batch size, reports after every
    epoch, and is stopped early when it is hopeless. Run again, it goes on with what it has learnt.
    """
    if queue and (url or database_url):
        raise typer.BadParameter("--queue starts servers of its own: leave --url and --database-url out")
    _require_packages()
    _quiet_client()
    with _optimizer(queue=queue, url=url, database_url=database_url, out=out) as places:
        _train(places, recurrences, processes=processes or (PROCESSES if queue else 1), seed=seed)
        summary, trials = asyncio.run(_results(places))
    plot = _draw(summary, trials, places.state_dir)
    if as_json:
        print_json(_fields(summary, plot, recurrences_now=recurrences))
    else:
        _show(summary, plot, places, is_lasting=not queue)


@contextmanager
def _optimizer(*, queue: bool, url: str | None, database_url: str | None, out: Path | None) -> Iterator[Places]:
    """Where the demo's job lives. A directory given with --out beats BSO_URL, since it asks for an embedded job."""
    if queue:
        from bso_cli.demo.stack import running_stack

        with running_stack(workers=WORKERS, say=_say) as stack:
            yield here(url=stack.amqp_url, database_url=stack.database_url, state_dir=out)
        return
    if out is not None and url is None:
        places = here(state_dir=out)
        yield dataclasses.replace(places, url=places.default_url, database_url=places.default_url)
        return
    places = here(url=url, database_url=database_url, state_dir=out)
    places.database("bso demo")
    yield places if not places.is_embedded else dataclasses.replace(places, database_url=places.optimizer_url)


def _train(places: Places, recurrences: int, *, processes: int, seed: int) -> None:
    from bso_cli.demo.summary import ESTIMATE
    from bso_cli.demo.training import CONTROL_ID, CONTROL_TRAININGS, DEFAULT_BATCH_SIZE, DemoJob

    _say(f"energy is {ESTIMATE}, and so are costs")
    job = DemoJob(url=places.optimizer_url, state_dir=str(places.state_dir), seed=seed)
    control = dataclasses.replace(job, job_id=CONTROL_ID, batch_sizes=(DEFAULT_BATCH_SIZE,))
    compared = asyncio.run(_recurrences_done(places, control.job_id))
    if compared < CONTROL_TRAININGS:
        count = counted(CONTROL_TRAININGS - compared, "training")
        _say(f"for comparison, {count} with the default batch size {DEFAULT_BATCH_SIZE}")
        _run(control, range(compared + 1, CONTROL_TRAININGS + 1), processes=processes, has_choice=False)
    done = asyncio.run(_recurrences_done(places, job.job_id))
    where = places.optimizer_url.removeprefix("sqlite:///") if places.is_embedded else "the queue"
    going_on = f"goes on after {counted(done, 'recurrence')}" if done else "begins"
    _say(f"job {job.job_id} {going_on}, in {where}")
    _run(job, range(done + 1, done + recurrences + 1), processes=processes, has_choice=True)


def _run(job: DemoJob, numbers: range, *, processes: int, has_choice: bool) -> None:
    from bso_cli.demo.crew import train_alone, train_together
    from bso_cli.demo.progress import DemoProgress

    with DemoProgress(onlookers(), recurrences=len(numbers), has_choice=has_choice) as progress:
        if processes == 1:
            train_alone(job, numbers, progress)
        else:
            train_together(job, numbers, progress, processes=processes)


async def _recurrences_done(places: Places, job_id: str) -> int:
    try:
        return (await describe(places, job_id)).recurrences
    except (NothingThere, Refused):
        return 0


async def _results(places: Places) -> tuple[DemoSummary, Sequence[Trial]]:
    from bso_cli.demo.summary import summarize
    from bso_cli.demo.training import CONTROL_ID, JOB_ID

    job = await describe(places, JOB_ID)
    async with reading(places.database("bso demo")) as store:
        trials, control = await store.trials(JOB_ID), await store.trials(CONTROL_ID)
    summary = summarize(job, trials, control)
    if summary is None:
        raise Refused(f"no trial of job {JOB_ID} has ended")
    return summary, trials


def _draw(summary: DemoSummary, trials: Sequence[Trial], folder: Path) -> Path:
    from bso_cli.demo.picture import draw

    return draw(summary, trials, folder.absolute() / f"{summary.job_id}.png")


def _fields(summary: DemoSummary, plot: Path, *, recurrences_now: int) -> dict[str, object]:
    fields: dict[str, object] = dataclasses.asdict(summary)
    details = fields.pop("saving")
    return fields | {
        "saving": None if summary.saving is None else summary.saving.cost,
        "saving_details": details,
        "recurrences_now": recurrences_now,
        "plot": str(plot),
    }


def _show(summary: DemoSummary, plot: Path, places: Places, *, is_lasting: bool) -> None:
    from bso_cli.demo.table import conclusion, results_table

    print_blocks(results_table(summary))
    print_result("")
    print_result(styled(conclusion(summary)))
    print_result(f"Picture: {plot}")
    if is_lasting:
        setting = "" if places.url is None else f"BSO_URL={places.optimizer_url} "
        print_result(f"Why each batch size was chosen: {setting}{_program()} jobs why {summary.job_id}")


def _program() -> str:
    """How to type the command that this is: with its path where it was started by a path."""
    typed = Path(sys.argv[0])
    return str(typed) if typed.name == "bso" and not typed.is_absolute() else "bso"


def _require_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("sklearn", "matplotlib") if find_spec(name) is None]
    if missing:
        raise Misconfigured(
            f"the demo needs {' and '.join(missing)}, not installed here: pip install 'bso-optimizer[demo]'"
        )


def _quiet_client() -> None:
    """The table says itself that energy is assumed and where the job is kept."""
    logging.getLogger("bso").setLevel(logging.ERROR)


def _say(sentence: str) -> None:
    print_notice(sentence)
