"""The options of ``bso simulate``, and what they say together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from bso.domain.quantities import counted
from bso.policies import DEFAULT as DEFAULT_POLICY
from bso_cli.options import JsonOption, beta_knob
from bso_cli.terminal import print_notice

if TYPE_CHECKING:
    from bso.simulator import BatchSizeProblem, Changes, Workload
    from bso.simulator.study import Case, StudySettings
    from bso.simulator.traces import TrainTrace

TRACES = "BSO_TRACES"
"""The environment variable that may name the folder of traces."""
TRACES_HELP = "A folder with summary_train.csv and a summary_power_GPU.csv for each GPU."
TracesArgument = Annotated[Path, typer.Argument(metavar="TRACES", envvar=TRACES, help=TRACES_HELP, show_default=False)]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Number of seeds (0 to N-1).")]
SpecOption = Annotated[
    list[str] | None,
    typer.Option("--spec", metavar="FIELD=VALUE", help="A field of the job specification; may be repeated."),
]
ProcessesOption = Annotated[
    int | None, typer.Option("--processes", min=1, help="Processes to simulate in. [default: one per core]")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What all commands that simulate a study may be given."""

    policy: Annotated[str, typer.Option(metavar="POLICY", help="The policy that decides.")] = DEFAULT_POLICY
    against: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Also simulate this policy, and print the difference.")
    ] = None
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="GPU", help="Only this GPU; may be repeated. [default: all]")
    ] = None
    eta: Annotated[float, typer.Option(min=0.0, max=1.0, help="eta_knob: 1 counts energy alone, 0 time alone.")] = 0.5
    beta: Annotated[
        float, typer.Option(min=0.0, help="beta_knob, the early-stopping threshold; 0: never stop early.")
    ] = 2.0
    drift: Annotated[
        str,
        typer.Option(
            metavar="DRIFT",
            help="Changes over time: epochs:x2.5@50, epoch-cost:x2.5@50, epoch-cost:+1%, optimum@50, optimum:+2@50; "
            "several with commas between.",
        ),
    ] = ""
    noise: Annotated[
        str,
        typer.Option(
            metavar="NOISE",
            help="Random variation of costs: run:0.3, epoch:0.3, spikes:0.1x3, node:0.3; several with commas between.",
        ),
    ] = ""
    probing: Annotated[
        float | None,
        typer.Option(
            metavar="ERROR",
            min=0.0,
            max=1.0,
            help="Trainings probe epoch costs of other batch sizes, and err by so much: 0.05 is 5 %, of all alike and "
            "of each. [default: they do not]",
            show_default=False,
        ),
    ] = None
    failure_rate: Annotated[float, typer.Option(metavar="P", help="The chance that any training fails, below 1.")] = 0.0
    move_from: Annotated[
        str,
        typer.Option(
            metavar="GPU@N",
            help="The job runs on this GPU before recurrence N, and then on its own: v100@30; with --truths the other "
            "GPU is made-2.",
        ),
    ] = ""
    spec: SpecOption = None
    processes: ProcessesOption = None
    csv: Annotated[Path | None, typer.Option(metavar="PATH", help="Write every trial there.", show_default=False)] = (
        None
    )
    plots: Annotated[
        Path | None,
        typer.Option(
            *("--plot", "--plots"), metavar="DIR", help="Draw regrets, choices and costs there.", show_default=False
        ),
    ] = None
    as_json: JsonOption = False

    def settings(self) -> StudySettings:
        """What all simulations have in common. Raises InvalidSimulation for a drift or a noise that is none."""
        from bso.simulator import Probing, parse_drift, parse_noise
        from bso.simulator.study import StudySettings

        overrides: dict[str, Any] = {"policy": self.policy, "eta_knob": self.eta, "beta_knob": beta_knob(self.beta)}
        return StudySettings(
            spec_overrides=overrides | spec_fields(self.spec or ()),
            drift=parse_drift(self.drift),
            noise=parse_noise(self.noise),
            failure_rate=self.failure_rate,
            probing=None if self.probing is None else Probing(common=self.probing, own=self.probing),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleOptions(StudyOptions):
    """What ``bso simulate single`` may be given."""

    truths: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SEED",
            help="Generated problems in place of traces: six families, drawn from SEED, each with the cheapest, a "
            "middle and the costliest batch size as default (the middle one may be one of the others).",
            show_default=False,
        ),
    ] = None
    dataset: Annotated[
        list[str] | None,
        typer.Option(metavar="DATASET", help="Only this dataset; may be repeated. [default: all known]"),
    ] = None
    recurrences: Annotated[
        int | None,
        typer.Option("--recurrences", "-n", min=1, help="[default: 2 x batch sizes x power limits]"),
    ] = None
    overlap: Annotated[
        int, typer.Option("--overlap", min=0, help="How many other recurrences run beside each one.")
    ] = 0
    new_version: Annotated[
        str,
        typer.Option(
            metavar="TARGET@N",
            help="At recurrence N the job gets this target metric, and so a new version: 0.65@30; with traces it needs "
            "one --dataset.",
        ),
    ] = ""

    def settings(self) -> StudySettings:
        """As those of any study."""
        return replace(StudyOptions.settings(self), recurrences=self.recurrences, overlap=self.overlap)

    def problems(self, traces: Path | None) -> tuple[BatchSizeProblem, ...]:
        """Those of traces, or made ones. Raises as problems_from; BadParameter where neither is named."""
        from bso.simulator import parse_changes

        changes = parse_changes(move_from=self.move_from, new_version=self.new_version)
        return _problems_of_single(traces, self.truths, self.gpu or (), self.dataset or (), changes)


def _problems_of_single(
    traces: Path | None, truths: int | None, gpus: Sequence[str], datasets: Sequence[str], changes: Changes
) -> tuple[BatchSizeProblem, ...]:
    if truths is None:
        if traces is None:
            raise typer.BadParameter("name a folder of traces, or draw problems with --truths SEED")
        return problems_from(traces, gpus, changes, datasets)
    from bso.simulator.truths import made_problems

    if traces is not None and str(traces) != os.environ.get(TRACES):
        raise typer.BadParameter(f"generated problems need no traces, got {traces}", param_hint="--truths")
    if gpus:
        raise typer.BadParameter("generated problems have no GPU", param_hint="--gpu")
    made = {problem.workload.dataset: problem for problem in made_problems(truths, changes=changes)}
    unknown = [name for name in datasets if name not in made]
    if unknown:
        raise typer.BadParameter(f"no generated problem is called {unknown[0]}; there are {', '.join(made)}")
    return tuple(made[name] for name in datasets or made)


def problems_from(
    traces: Path, gpus: Sequence[str], changes: Changes, datasets: Sequence[str] = ()
) -> tuple[BatchSizeProblem, ...]:
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


def places_of_cluster(places: Sequence[Path]) -> tuple[Path, Path]:
    """The folder of traces, which the environment may name instead, and the cluster trace. Raises BadParameter."""
    *folders, trace = places
    usual = os.environ.get(TRACES)
    if not folders and usual:
        return Path(usual), trace
    if len(folders) != 1:
        raise typer.BadParameter(
            f"expected a folder of traces (or {TRACES}) and a cluster trace, got {counted(len(places), 'path')}",
            param_hint="[TRACES] CLUSTER_TRACE",
        )
    return folders[0], trace


def check_changes(cases: Sequence[Case], settings: StudySettings) -> None:
    """Say which changes come after the end of some jobs. Raises InvalidSimulation for one that no job lives to see."""
    from bso.simulator import InvalidSimulation
    from bso.simulator.study import unseen_changes

    for recurrence, last in unseen_changes(cases, settings).items():
        if len(last) == len(cases):
            raise InvalidSimulation(
                f"a change (--drift, --move-from or --new-version) comes at recurrence {recurrence}, but there are "
                f"only {max(last)} recurrences: expected an earlier change, or more recurrences"
            )
        some = f"{len(last)} of {len(cases)} jobs end before recurrence {recurrence}"
        print_notice(Text(f"{some}: its change does not come there."))


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
