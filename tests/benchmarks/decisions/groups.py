"""Groups of jobs whose regrets are compared: they move, get a new version, meet no noise, or probe in spite of it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from bso.policies.curve.memory import NAME as CURVE
from bso.policies.pruning_thompson.memory import NAME as PRUNING_THOMPSON
from bso.simulator import BatchSizeProblem, Changes, InvalidSimulation, Move, NewVersion, Workload, make_problem
from bso.simulator.phases import in_phases_of_traces
from bso.simulator.problem import problems_of
from bso.simulator.traces import TRAIN_FILE, PowerTrace, TrainTrace, power_files, read_power_trace, read_train_trace
from bso.simulator.workloads import known_workloads
from tests.benchmarks.decisions.known_noise import KNOWING
from tests.benchmarks.decisions.probed import PROBED
from tests.benchmarks.decisions.worlds import (
    CHANGED,
    NOISES,
    QUIET,
    MeasuredWorld,
    World,
    moved,
    renewed,
    worlds_with,
)

TRACES, TRUTHS = "measured traces", "made truths"
SOON, LATE = CHANGED + 19, 100
"""The recurrences up to which a change is judged: the next 20, and the next 70."""


class Kind(Enum):
    """What happens to the jobs of a group."""

    MOVED = "a move to another kind of GPU"  # after 30 recurrences
    RENEWED = "a new version"  # another target metric after 30 recurrences
    QUIET = "no noise"  # and the policy knows that, or not
    PROBED = "probes under noise"  # and the same jobs without probes


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs of worlds of one source, which recur so often under each of the policies."""

    kind: Kind
    source: str
    worlds: Sequence[World]
    policies: Sequence[str]
    recurrences: int

    def without(self, left_out: Collection[str]) -> "Group":
        """The group without these policies."""
        return replace(self, policies=[policy for policy in self.policies if policy not in left_out])


def made_groups() -> tuple[Group, ...]:
    """On made truths."""
    return _groups(
        TRUTHS,
        (CURVE,),
        SOON,
        moved_worlds=worlds_with(QUIET, changes=moved),
        renewed_worlds=worlds_with(QUIET, changes=renewed),
        quiet_worlds=worlds_with(QUIET),
    )


def probing_groups() -> tuple[Group, ...]:
    """On made truths, a group for each noise."""
    return tuple(
        Group(
            kind=Kind.PROBED,
            source=f"{TRUTHS}, {name}",
            worlds=worlds_with(noise),
            policies=(CURVE, *PROBED),
            recurrences=SOON,
        )
        for name, noise in NOISES.items()
    )


def measured_groups(folder: Path) -> tuple[Group, ...]:
    """On the traces of a folder."""
    traces = _Traces.read(folder)
    return _groups(
        TRACES,
        (CURVE, PRUNING_THOMPSON),
        LATE,
        moved_worlds=traces.moves(),
        renewed_worlds=traces.new_versions(),
        quiet_worlds=[MeasuredWorld(name=problem.name, measured=problem) for problem in traces.problems],
    )


def _groups(
    source: str,
    policies: Sequence[str],
    until: int,
    *,
    moved_worlds: Sequence[World],
    renewed_worlds: Sequence[World],
    quiet_worlds: Sequence[World],
) -> tuple[Group, ...]:
    groups = (
        Group(kind=Kind.MOVED, source=source, worlds=moved_worlds, policies=(*policies, *PROBED), recurrences=SOON),
        Group(kind=Kind.RENEWED, source=source, worlds=renewed_worlds, policies=policies, recurrences=until),
        Group(kind=Kind.QUIET, source=source, worlds=quiet_worlds, policies=(CURVE, KNOWING), recurrences=LATE),
    )
    return tuple(group for group in groups if group.worlds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traces:
    """A folder of traces, and the problems in it."""

    train: TrainTrace
    powers: Sequence[PowerTrace]
    problems: Sequence[BatchSizeProblem]

    @classmethod
    def read(cls, folder: Path) -> "_Traces":
        """Read a folder. Raises InvalidTrace and InvalidSimulation."""
        train = read_train_trace(folder / TRAIN_FILE)
        powers = [read_power_trace(path) for path in power_files(folder)]
        return cls(
            train=train, powers=powers, problems=problems_of(train, powers, gpus=(), workloads=known_workloads(folder))
        )

    def moves(self) -> list[World]:
        """Each workload from each GPU to each other one."""
        return [
            MeasuredWorld(
                name=f"{problem.workload.dataset}, {power.gpu} to {problem.gpu}",
                measured=self._changed(problem, Changes(move=Move(gpu=power.gpu, start=CHANGED))),
            )
            for problem in self.problems
            for power in self.powers
            if power.gpu != problem.gpu and problem.workload.key in power.epochs
        ]

    def new_versions(self) -> list[World]:
        """Each workload on each GPU, from the next easier and the next harder target metric to its own one.

        As far as half of the runs of the default batch size reach that within max_epochs.
        """
        found: list[World] = []
        for problem in self.problems:
            own = problem.workload.target_metric
            for target in self._neighbours(problem.workload):
                before = self._with_target(problem, target)
                if before is not None and _is_within_reach(before):
                    changes = Changes(new_version=NewVersion(target_metric=own, start=CHANGED))
                    name = f"{problem.name}, {target:g} to {own:g}"
                    found.append(MeasuredWorld(name=name, measured=self._changed(before, changes)))
        return found

    def _neighbours(self, workload: Workload) -> Sequence[float]:
        targets = sorted({target for run in self.train.of(workload.key) for target in run.reached})
        place = min(range(len(targets)), key=lambda i: abs(targets[i] - workload.target_metric))
        return [*targets[max(0, place - 1) : place], *targets[place + 1 : place + 2]]

    def _with_target(self, problem: BatchSizeProblem, target: float) -> BatchSizeProblem | None:
        """None where no run reaches it."""
        (power,) = (one for one in self.powers if one.gpu == problem.gpu)
        try:
            return make_problem(replace(problem.workload, target_metric=target), self.train, power)
        except InvalidSimulation:
            return None

    def _changed(self, problem: BatchSizeProblem, changes: Changes) -> BatchSizeProblem:
        (found,) = in_phases_of_traces([problem], changes, self.train, self.powers)
        return found


def _is_within_reach(problem: BatchSizeProblem) -> bool:
    runs = problem.runs[problem.default_batch_size]
    return 2 * sum(epochs is not None and epochs <= problem.workload.max_epochs for epochs in runs) >= len(runs)
