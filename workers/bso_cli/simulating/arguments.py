"""The options of ``bso simulate``, and what they say together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from bso_cli.terminal import print_notice

if TYPE_CHECKING:
    from bso.simulator import Changes, Problem, Workload
    from bso.simulator.study import StudySettings
    from bso.simulator.traces import TrainTrace

TracesArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TRACES",
        envvar="BSO_TRACES",
        help="A folder with summary_train.csv and a summary_power_GPU.csv for each GPU.",
        show_default=False,
    ),
]
TracesOrTruthsArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[TRACES]",
        envvar="BSO_TRACES",
        help="A folder with summary_train.csv and a summary_power_GPU.csv for each GPU; none with --truths.",
        show_default=False,
    ),
]
TruthsOption = Annotated[
    int | None,
    typer.Option(
        "--truths",
        min=0,
        metavar="SEED",
        help="Generated problems in place of traces: six families, drawn from SEED, each with the cheapest, a middle "
        "and the costliest batch size as default.",
        show_default=False,
    ),
]
GpuOption = Annotated[
    list[str] | None, typer.Option("--gpu", metavar="GPU", help="Only this GPU; may be repeated. [default: all]")
]
DatasetOption = Annotated[
    list[str] | None,
    typer.Option("--dataset", metavar="DATASET", help="Only this dataset; may be repeated. [default: all known]"),
]
PolicyOption = Annotated[str, typer.Option("--policy", metavar="POLICY", help="The policy that decides.")]
AgainstOption = Annotated[
    str | None,
    typer.Option("--against", metavar="POLICY", help="Also simulate this policy, and print the difference."),
]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Number of seeds (0 to N-1).")]
EtaOption = Annotated[
    float, typer.Option("--eta", min=0.0, max=1.0, help="eta_knob: 1 counts energy alone, 0 time alone.")
]
BetaOption = Annotated[
    float, typer.Option("--beta", min=0.0, help="beta_knob, the early-stopping threshold; 0: never stop early.")
]
DriftOption = Annotated[
    str,
    typer.Option(
        "--drift",
        metavar="DRIFT",
        help="Changes over time: epochs:x2.5@50, epoch-cost:x2.5@50, epoch-cost:+1%, optimum@50, optimum:+2@50; "
        "several with commas between.",
    ),
]
MoveOption = Annotated[
    str,
    typer.Option(
        "--move-from",
        metavar="GPU@N",
        help="The job runs on this GPU before recurrence N, and then on its own: v100@30; with --truths the other GPU "
        "is made-2.",
    ),
]
VersionOption = Annotated[
    str,
    typer.Option(
        "--new-version",
        metavar="TARGET@N",
        help="At recurrence N the job gets this target metric, and so a new version: 0.65@30; with traces it needs one "
        "--dataset.",
    ),
]
NoiseOption = Annotated[
    str,
    typer.Option(
        "--noise",
        metavar="NOISE",
        help="Random variation of costs: run:0.3, epoch:0.3, spikes:0.1x3, node:0.3; several with commas between.",
    ),
]
FailureRateOption = Annotated[
    float, typer.Option("--failure-rate", metavar="P", help="The chance that any training fails, below 1.")
]
SpecOption = Annotated[
    list[str] | None,
    typer.Option("--spec", metavar="FIELD=VALUE", help="A field of the job specification; may be repeated."),
]
ProcessesOption = Annotated[
    int | None, typer.Option("--processes", min=1, help="Processes to simulate in. [default: one per core]")
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="PATH", help="Write every trial there.", show_default=False)
]
PlotsOption = Annotated[
    Path | None,
    typer.Option("--plots", metavar="DIR", help="Draw regrets, choices and costs there.", show_default=False),
]


def problems_of_single(
    traces: Path | None, truths: int | None, gpus: Sequence[str], datasets: Sequence[str], changes: Changes
) -> tuple[Problem, ...]:
    """The problems of traces, or made ones. Raises as problems_from; BadParameter where neither is named."""
    if truths is None:
        if traces is None:
            raise typer.BadParameter("name a folder of traces, or draw problems with --truths SEED")
        return problems_from(traces, gpus, changes, datasets)
    from bso.simulator.truths import made_problems

    if traces is not None and str(traces) != os.environ.get("BSO_TRACES"):
        raise typer.BadParameter(f"generated problems need no traces, got {traces}", param_hint="--truths")
    if gpus:
        raise typer.BadParameter("generated problems have no GPU", param_hint="--truths")
    made = {problem.workload.dataset: problem for problem in made_problems(truths, changes=changes)}
    unknown = [name for name in datasets if name not in made]
    if unknown:
        raise typer.BadParameter(f"no generated problem is called {unknown[0]}; there are {', '.join(made)}")
    return tuple(made[name] for name in datasets or made)


def problems_from(
    traces: Path, gpus: Sequence[str], changes: Changes, datasets: Sequence[str] = ()
) -> tuple[Problem, ...]:
    """The problems that arguments name. Raises InvalidTrace, InvalidSimulation, and OSError for a missing file."""
    from bso.simulator.phases import in_phases_of_traces
    from bso.simulator.problem import problems_of
    from bso.simulator.traces import TRAIN_FILE, power_files, read_power_trace, read_train_trace

    if changes.new_version is not None and len(datasets) != 1:
        raise typer.BadParameter(
            "a target metric belongs to one dataset: give one --dataset", param_hint="--new-version"
        )
    train = read_train_trace(traces / TRAIN_FILE)
    files = power_files(traces)
    if not files:
        raise FileNotFoundError(2, os.strerror(2), str(traces / "summary_power_GPU.csv"))
    powers = [read_power_trace(path) for path in files]
    problems = problems_of(train, powers, gpus=gpus, workloads=_workloads(train, datasets))
    return in_phases_of_traces(problems, changes, train, powers)


def settings_from(
    *,
    policy: str,
    eta: float,
    beta: float,
    drift: str,
    noise: str,
    failure_rate: float,
    spec: Sequence[str],
    recurrences: int | None = None,
    overlap: int = 0,
) -> StudySettings:
    """What all simulations have in common. Raises InvalidSimulation for a drift or a noise that is not understood."""
    from bso.simulator import parse_drift, parse_noise
    from bso.simulator.study import StudySettings

    overrides: dict[str, Any] = {"policy": policy, "eta_knob": eta, "beta_knob": beta or None}
    return StudySettings(
        spec_overrides=overrides | spec_fields(spec),
        recurrences=recurrences,
        overlap=overlap,
        drift=parse_drift(drift),
        noise=parse_noise(noise),
        failure_rate=failure_rate,
    )


def spec_fields(texts: Sequence[str]) -> dict[str, Any]:
    """The fields of a job specification that ``SpecOption`` names. Raises typer.BadParameter."""
    return dict(map(_field, texts))


def _field(text: str) -> tuple[str, object]:
    """A field and its value, which is JSON or else a word."""
    import json

    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"expected FIELD=VALUE, got {text!r}", param_hint="--spec")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _workloads(train: TrainTrace, datasets: Sequence[str]) -> Sequence[Workload]:
    """Those that are named, else all whose targets are known; what is left out is said."""
    from bso.simulator import InvalidSimulation
    from bso.simulator.workloads import WORKLOADS_FILE, known_workloads

    known = {workload.dataset: workload for workload in known_workloads(train.path.parent)}
    described_in = train.path.with_name(WORKLOADS_FILE)
    held = {run.workload for run in train.runs}
    if absent := set(datasets) - {dataset for dataset, *_ in held}:
        there = ", ".join(sorted({dataset for dataset, *_ in held}))
        raise InvalidSimulation(f"{train.path} holds no run of dataset {min(absent)}; it holds {there}")
    if unknown := set(datasets) - known.keys():
        raise InvalidSimulation(f"the target of dataset {min(unknown)} is not known: describe it in {described_in}")
    left_out = sorted(held - {workload.key for workload in known.values()})
    if left_out and not datasets:
        names = "; ".join(map(" ".join, left_out))
        print_notice(Text(f"Left out, since their targets are not known: {names}. Describe them in {described_in}."))
    return [known[dataset] for dataset in dict.fromkeys(datasets or known)]
