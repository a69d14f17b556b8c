"""``bso replay what-if``: what other policies and knobs would have cost a job, judged by its own trainings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from bso_cli.access import seeing, whole_history
from bso_cli.options import DatabaseOption, JobArgument, JsonOption, beta_knob, here, with_options
from bso_cli.progress import counting, simulating
from bso_cli.refusals import CommandRefused
from bso_cli.replaying.sources import STANDARD_INPUT, FromOption, log_of
from bso_cli.simulating.arguments import ProcessesOption, SpecOption, spec_fields
from bso_cli.terminal import HANG, print_block, print_blocks, print_json, print_result

if TYPE_CHECKING:
    from bso.replay.fold import Folding

COMMAND = "bso replay what-if"
SEEDS = 100
MOST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """What to compare a job with, and how."""

    policy: Annotated[
        list[str] | None, typer.Option("--policy", metavar="POLICY", help="Another policy.", show_default=False)
    ] = None
    eta: Annotated[
        list[float] | None,
        typer.Option("--eta", metavar="ETA", help="eta_knob: 1 counts energy alone, 0 time alone.", show_default=False),
    ] = None
    beta: Annotated[
        list[float] | None,
        typer.Option("--beta", metavar="BETA", help="beta_knob; 0: never stop early.", show_default=False),
    ] = None
    spec: SpecOption = None
    recurrences: Annotated[
        int | None,
        typer.Option(
            "--recurrences", "-n", min=1, metavar="N", help=f"[default: as many as were recorded, at most {MOST}]"
        ),
    ] = None
    seeds: Annotated[int, typer.Option("--seeds", min=2, metavar="N", help="Lives simulated of each alternative.")] = (
        SEEDS
    )
    job_version: Annotated[
        int | None, typer.Option("--job-version", min=1, metavar="N", help="[default: the current version]")
    ] = None
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware", metavar="KIND", help="Its key, or a part of its name. [default: the one with most models]"
        ),
    ] = None
    processes: ProcessesOption = None
    source: FromOption = None
    database_url: DatabaseOption = None
    as_json: JsonOption = False


@with_options
def what_if(job: JobArgument, *, options: WhatIfOptions) -> None:
    """Say what other policies and knobs would have cost a job, judged by its own recorded trainings.

    The job as it is and each combination of --policy, --eta and --beta, which may be repeated, are simulated from
    their first recurrence, as `bso simulate` does, in worlds drawn from the recorded trainings. What was stopped before
    its target enters as a bound; a batch size that was tried once varies as the others do. A table says what is known
    of each batch size, and how many more trainings would settle what is not.

    With --json one object. Exit code 1 if nothing can be said of the job.

    **Examples**

    `bso replay what-if digits-nightly --policy pruning_thompson --eta 0.3`

    `bso replay what-if digits-nightly --spec batch_sizes=[32,64] --spec default_batch_size=64`
    """
    from bso.replay.what_if.answers import alternatives, play
    from bso.replay.what_if.history import record_of
    from bso_cli.replaying import what_if_printed as printed

    source = options.source
    if source is not None and source != STANDARD_INPUT and not source.exists():
        raise CommandRefused(f"there is no file {source}")
    folded = asyncio.run(_folded(job, source, options.database_url))
    record = record_of(folded, version_number=options.job_version, hardware=options.hardware)
    compared = alternatives(
        record,
        policies=options.policy or (),
        eta_knobs=options.eta or (),
        beta_knobs=[beta_knob(given) for given in options.beta or ()],
        changes=spec_fields(options.spec or ()),
    )
    times, seeds = options.recurrences or min(max(1, record.models), MOST), options.seeds
    with simulating(len(compared) * seeds) as advance:
        found = play(record, compared, seeds=seeds, recurrences=times, processes=options.processes, on_done=advance)
    if options.as_json:
        print_json(printed.as_json(record, found, seeds=seeds, recurrences=times))
        return
    print_block(printed.known_table(record))
    print_blocks(printed.answers_table(record, found, seeds=seeds, recurrences=times))
    for line in (*printed.choices(record, found), *printed.notes(record, found)):
        print_result(Text(line), hang=HANG)


async def _folded(job_id: str, source: Path | None, database_url: str | None) -> Folding:
    """A job's whole log. Raises CommandRefused where there is none, LogBroken where it cannot be folded."""
    from bso.replay.fold import Folding, pages_of
    from bso.service.serialization import recorded_from

    folding = Folding(job_id)
    places = here(database_url=database_url)
    with counting(f"reading the log of {job_id}", "events") as counter:
        if source is None and not places.has_database:
            async with seeing(places) as reads:
                async for stored in whole_history(reads, job_id):
                    folding.add(stored.recorded)
                    counter(1)
        else:
            async with log_of(source, database_url, command=COMMAND) as log:
                async for page in pages_of(log, job_id):
                    for logged in page:
                        folding.add(recorded_from(logged))
                    counter(len(page))
    if not folding.events:
        where = "" if source is not None else "; `bso jobs list` shows the jobs"
        raise CommandRefused(f"nothing is recorded of {job_id}{where}")
    folding.require_whole()
    return folding
