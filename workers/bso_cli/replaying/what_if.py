"""``bso replay what-if``: what other knobs would have cost a job, judged by its own trainings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bso_cli.options import DatabaseOption, JobArgument, JsonOption
from bso_cli.refusals import FAILURE, Refused
from bso_cli.replaying.progress import Counter
from bso_cli.replaying.sources import STANDARD_INPUT, FromOption, log_of
from bso_cli.terminal import HANG, print_block, print_blocks, print_json, print_result

if TYPE_CHECKING:
    from bso.replay.fold import Folding
    from bso.replay.what_if.alternatives import Alternative
    from bso.replay.what_if.answers import Answer
    from bso.replay.what_if.recorded import Record

COMMAND = "bso replay what-if"
SEEDS = 100
MOST = 200


def what_if(
    job: JobArgument,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="POLICY", help="Another policy.", show_default=False)
    ] = None,
    eta: Annotated[
        list[float] | None,
        typer.Option("--eta", metavar="ETA", help="eta_knob: 1 counts energy alone, 0 time alone.", show_default=False),
    ] = None,
    beta: Annotated[
        list[float] | None,
        typer.Option("--beta", metavar="BETA", help="beta_knob; 0: never stop early.", show_default=False),
    ] = None,
    window: Annotated[
        list[int] | None, typer.Option("--window", metavar="N", help="window_size; 0: all.", show_default=False)
    ] = None,
    batch_sizes: Annotated[
        list[str] | None,
        typer.Option("--batch-sizes", metavar="N,N,...", help="Only these batch sizes.", show_default=False),
    ] = None,
    default_batch_size: Annotated[
        list[int] | None,
        typer.Option("--default-batch-size", metavar="N", help="Another batch size to begin with.", show_default=False),
    ] = None,
    recurrences: Annotated[
        int | None,
        typer.Option(
            "--recurrences", "-n", min=1, metavar="N", help=f"[default: as many as were recorded, at most {MOST}]"
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=2, metavar="N", help="Lives simulated of each alternative.")
    ] = SEEDS,
    job_version: Annotated[
        int | None, typer.Option("--job-version", min=1, metavar="N", help="[default: the current version]")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware", metavar="KIND", help="Its key, or a part of its name. [default: that of the most models]"
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, metavar="N", help="[default: one per core]")
    ] = None,
    source: FromOption = None,
    database_url: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what other policies and knobs would have cost a job, judged by its own recorded trainings.

    Options may be repeated: every combination is compared with the job as it is. Each is simulated from its first
    recurrence, with the rules that workers decide by, in worlds drawn from the recorded trainings; what was stopped
    before its target enters as a bound. Batch sizes with fewer than two converged trainings are unknown: they are left
    out, and nothing is said of an alternative that names one.

    With --json one object. Exit code 1 if nothing is known of the job as it is.

    **Example**

    `bso replay what-if digits-nightly --policy pruning_thompson --policy curve --eta 0.3`
    """
    from bso.replay.what_if.alternatives import Grid, alternatives
    from bso.replay.what_if.recorded import record_of

    if source is not None and source != STANDARD_INPUT and not source.exists():
        raise Refused(f"there is no file {source}")
    folding = asyncio.run(_folded(job, source, database_url))
    grid = Grid(
        policies=policy or (),
        eta_knobs=eta or (),
        beta_knobs=[value or None for value in beta or ()],
        window_sizes=window or (),
        batch_sizes=[_sizes(text) for text in batch_sizes or ()],
        default_batch_sizes=default_batch_size or (),
    )
    record = record_of(folding, version_number=job_version, hardware=hardware)
    compared = alternatives(record, grid)
    times = recurrences or min(max(1, record.models), MOST)
    found = _answered(record, compared, seeds=seeds, recurrences=times, processes=processes or os.cpu_count() or 1)
    _tell(record, compared, found, seeds=seeds, recurrences=times, as_json=as_json)
    if found[0] is None:
        raise typer.Exit(FAILURE)


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"expected whole numbers with commas between, got {text!r}", param_hint="--batch-sizes"
        ) from error


async def _folded(job_id: str, source: Path | None, database_url: str | None) -> Folding:
    """A job's whole log. Raises Refused where there is none, LogBroken where it cannot be folded."""
    from bso.replay.fold import Folding, pages_of
    from bso.service.serialization import recorded_from

    folding = Folding(job_id)
    async with log_of(source, database_url, command=COMMAND) as log:
        with Counter(f"reading the log of {job_id}", "events") as counter:
            async for page in pages_of(log, job_id):
                for logged in page:
                    folding.add(recorded_from(logged))
                counter(len(page))
    if not folding.events:
        where = "" if source is not None else "; `bso jobs list` shows the jobs of a database"
        raise Refused(f"nothing is recorded of {job_id}{where}")
    folding.require_whole()
    return folding


def _answered(
    record: Record, compared: Sequence[Alternative], *, seeds: int, recurrences: int, processes: int
) -> tuple[Answer | None, ...]:
    from bso.replay.what_if.answers import answers
    from bso.replay.what_if.playing import lives_to_play, play

    lives_in_all = lives_to_play(record, compared, seeds=seeds)
    with Counter("simulating", f"of {lives_in_all:,} lives of the job") as counter:
        lives = play(
            record,
            compared,
            seeds=seeds,
            recurrences=recurrences,
            processes=processes,
            on_done=lambda _: counter(1),
        )
    return answers(record, compared, lives)


def _tell(
    record: Record,
    compared: Sequence[Alternative],
    found: Sequence[Answer | None],
    *,
    seeds: int,
    recurrences: int,
    as_json: bool,
) -> None:
    from bso_cli.replaying import what_if_printed as printed

    if as_json:
        print_json(printed.as_json(record, compared, found, seeds=seeds, recurrences=recurrences))
        return
    answers = printed.answers_table(record, compared, found, seeds=seeds, recurrences=recurrences)
    print_block(printed.known_table(record))
    print_blocks(answers)
    for line in (*printed.choices(record, compared, found), *printed.notes(record, compared)):
        print_result(Text(line), hang=HANG)
