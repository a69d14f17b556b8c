"""``bso simulate``: how a policy would do on measured traces."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bso.credentials import Data
from bso_cli.options import with_options
from bso_cli.progress import simulating
from bso_cli.refusals import CommandGroup
from bso_cli.simulating import arguments as given
from bso_cli.terminal import people, print_blocks, print_json, print_result

if TYPE_CHECKING:
    from bso.simulator.study import Case, CaseRuns

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Simulate policies on measured traces, with the production rules.\n\n"
    "The traces are those of the Zeus paper (NSDI '23), in examples/research_reproducibility/zeus_nsdi23/trace of "
    "https://github.com/ml-energy/zeus, or your own in the same format (docs/simulator.md).\n\n"
    "Without traces: `bso simulate single --truths 1` has made problems, and `bso replay what-if JOB` plays a job that "
    "you have run.",
)

SEEDS = 10
CLUSTER_SEEDS = 3


@app.command()
@with_options
def single(
    *,
    traces: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TRACES]",
            envvar=given.TRACES,
            help="A folder with summary_train.csv and a summary_power_GPU.csv for each GPU; none with --truths.",
            show_default=False,
        ),
    ] = None,
    seeds: given.SeedsOption = SEEDS,
    options: given.SingleOptions,
) -> None:
    """Let one job after the other recur, each recurrence until it has a model.

    A problem is a workload on a GPU. *Regret* is the number of whole trainings wasted against an oracle that always
    runs the best batch size at its best power limit, with the same luck. Intervals are 95 %, from a bootstrap.

    **Examples**

    `bso simulate single traces/ --gpu a40 --seeds 20`

    `bso simulate single traces/ --dataset squad --recurrences 100 --drift epochs:x1.5@50 --json`

    `bso simulate single --truths 1 --noise run:0.3 --recurrences 60 --against pruning_thompson`

    `bso simulate single traces/ --gpu a40 --move-from v100@30 --recurrences 60`
    """
    from bso.simulator.study import Case

    cases = [Case(name=problem.name, problem=problem) for problem in options.problems(traces)]
    _study(cases, seeds, options)


@app.command()
@with_options
def cluster(
    *,
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="[TRACES] CLUSTER_TRACE",
            help=f"{given.TRACES_HELP} {given.TRACES} may name it instead. Then the cluster trace: a CSV file, or "
            ".csv.xz.",
            show_default=False,
        ),
    ],
    seeds: given.SeedsOption = CLUSTER_SEEDS,
    options: given.StudyOptions,
) -> None:
    """Simulate the groups of a cluster trace, whose recurrences overlap.

    The trace has the columns group, start_time, dataset and runtime_ratio, as the Alibaba cluster trace mapped by the
    Zeus paper; its end_time is not needed. Each group is a job on each GPU; a recurrence begins at its
    start_time, and its time and energy are multiplied by its runtime_ratio.

    **Example**

    `bso simulate trace traces/ --groups 40 --output cluster.csv && bso simulate cluster traces/ cluster.csv --gpu a40`
    """
    from bso.simulator import parse_changes
    from bso.simulator.cluster import cluster_cases, read_cluster_trace

    folder, file = given.places_of_cluster(places)
    problems = given.problems_from(folder, options.gpu or (), parse_changes(move_from=options.move_from))
    _study(cluster_cases(read_cluster_trace(file), problems), seeds, options)


@app.command("trace")
def make_trace(
    traces: given.TracesArgument,
    groups: Annotated[int, typer.Option("--groups", min=1, help="How many jobs recur.")] = 20,
    recurrences: Annotated[
        int, typer.Option("--recurrences", "-n", min=1, help="Mean number of recurrences of a job.")
    ] = 50,
    overlap: Annotated[
        float, typer.Option("--overlap", min=0.0, help="Mean number of other recurrences that run when one begins.")
    ] = 1.0,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Runtimes are those of this GPU. [default: the first]")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same trace.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="[default: standard output] .xz: compressed."),
    ] = None,
) -> None:
    """Make a cluster trace for `bso simulate cluster`.

    Recurrences of a group begin at random times; runtimes vary about that of the default batch size.
    """
    from bso.simulator import NO_CHANGES
    from bso.simulator.cluster import cluster_trace_text, make_cluster_trace, write_cluster_trace
    from bso.simulator.world import usual_runtime_s

    problems = given.problems_from(traces, [gpu] if gpu else (), NO_CHANGES)
    of_gpu = [problem for problem in problems if problem.gpu == problems[0].gpu]
    jobs = make_cluster_trace(
        {problem.workload.dataset: usual_runtime_s(problem) for problem in of_gpu},
        groups=groups,
        recurrences=recurrences,
        overlap=overlap,
        seed=seed,
    )
    if output is None:
        sys.stdout.write(Data(cluster_trace_text(jobs)))
    else:
        write_cluster_trace(output, jobs)


def _study(cases: Sequence[Case], seeds: int, options: given.StudyOptions) -> None:
    """Simulate all cases, and print what came of them. Raises OSError, before that, where it could not be written."""
    from bso.simulator.study import study

    if options.csv is not None:
        _check_writable(options.csv)
    if options.plots is not None:
        options.plots.mkdir(parents=True, exist_ok=True)
    settings = options.settings()
    given.check_changes(cases, settings)
    compared = [settings]
    if options.against is not None:
        compared.append(replace(settings, spec_overrides={**settings.spec_overrides, "policy": options.against}))
    cores = options.processes or os.cpu_count() or 1
    with simulating(len(compared) * len(cases) * seeds) as advance:
        studies = [study(cases, range(seeds), each, processes=cores, on_done=advance) for each in compared]
    _show(studies, _written(studies, options), as_json=options.as_json)


def _check_writable(path: Path) -> None:
    """Raise OSError where a file cannot be written; one that was not there is not left there."""
    is_new = not (path.exists() or path.is_symlink())
    path.touch()
    if is_new:
        path.unlink()


def _written(studies: Sequence[Sequence[CaseRuns]], options: given.StudyOptions) -> list[Path]:
    """The files of results, written."""
    from bso_cli.simulating.printed import write_trials

    paths: list[Path] = []
    if options.csv is not None:
        write_trials([result for results in studies for result in results], options.csv)
        paths.append(options.csv)
    if options.plots is not None:
        from bso_cli.simulating.plots import draw

        paths += [path for results in studies for path in draw(results, options.plots, is_named=len(studies) > 1)]
    return paths


def _show(studies: Sequence[Sequence[CaseRuns]], written: Sequence[Path], *, as_json: bool) -> None:
    from bso.simulator.summary import compare, summarize
    from bso_cli.simulating import printed

    summaries = [summarize(results) for results in studies]
    difference = compare(*studies) if len(studies) > 1 else None
    if as_json:
        print_json(printed.as_json(summaries, difference))
        return
    for summary in summaries:
        print_blocks(*printed.tables_of(summary, people()))
    if difference is not None:
        print_result(printed.sentence_of(difference))
    for path in written:
        print_result(f"Written: {path}")
