"""A recurring job written command by command, its trainings being those of a simulator's world."""

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from bso.domain.commands import BeginTrial, Command, PowerMeasurement, RegisterJob, ReportEpoch, ReportPowerProfile
from bso.domain.decide import Context, Facts, Rules, decide
from bso.domain.job import Job
from bso.domain.log import RecordedEvent
from bso.domain.replies import EpochJudged, Reply, TrialBegun
from bso.domain.trial import Outcome
from bso.replay.fold import Folding
from bso.simulator import BatchSizeProblem
from bso.simulator.noise import NO_NOISE, Noise
from bso.simulator.world import World

JOB = "nightly"
BEGINNING = datetime(2026, 10, 1, tzinfo=UTC)


def spec_of(problem: BatchSizeProblem, **changes: Any) -> dict[str, Any]:
    """A job specification that fits a problem."""
    return {
        "batch_sizes": problem.batch_sizes,
        "default_batch_size": problem.default_batch_size,
        "target_metric": problem.workload.target_metric,
        "max_epochs": problem.workload.max_epochs,
        "policy": "pruning_thompson",
        "mab_seed": 5,
        **changes,
    }


def recurring(
    problem: BatchSizeProblem, spec: dict[str, Any], *, recurrences: int, seed: int, noise: Noise = NO_NOISE
) -> Generator[Command, Reply, None]:
    """The commands of a job that recurs, each recurrence until it has a model; send in what was replied."""
    world = World(problem=problem, seed=seed, eta_knob=spec.get("eta_knob", 0.5), noise=noise)
    runs: dict[int, int] = {}
    profiled: set[int] = set()
    yield RegisterJob(spec=spec)
    for number in range(1, recurrences + 1):
        has_model = False
        while not has_model:
            begun = yield BeginTrial(hardware=problem.hardware, recurrence_id=f"night-{number}")
            assert isinstance(begun, TrialBegun), begun
            size = begun.batch_size
            runs[size] = runs.get(size, 0) + 1
            needed = world.epochs_to_target(size, runs[size], number)
            factor = world.run_factor(size, runs[size], number)
            has_model = yield from _training(world, begun, needed, factor, is_profiling=size not in profiled)
            if size not in profiled:
                profiled.add(size)
                yield _profile(problem, size)


def _training(
    world: World, begun: TrialBegun, needed: int | None, factor: float, *, is_profiling: bool
) -> Generator[Command, Reply, bool]:
    size = begun.batch_size
    time_s = energy_j = 0.0
    for epoch in count(1):
        is_profiled = is_profiling and epoch == 1
        price = world.price_under(_equal_shares(world.problem), size, 1) if is_profiled else world.price(size, 1)
        time_s += factor * price.time_s
        energy_j += factor * price.energy_j
        judged = yield ReportEpoch(
            trial_number=begun.trial_number,
            trial_id=begun.trial_id,
            epoch=float(epoch),
            time_s=time_s,
            energy_j=energy_j,
            metric=1.0 if epoch == needed else 0.0,
            is_profiling=is_profiled,
        )
        assert isinstance(judged, EpochJudged), judged
        if judged.should_stop:
            return judged.outcome is Outcome.CONVERGED
    raise AssertionError("a training is stopped in the end")


def _equal_shares(problem: BatchSizeProblem) -> dict[float, float]:
    """Of an epoch, for each power limit."""
    return dict.fromkeys(problem.power_limits_w, 1 / len(problem.power_limits_w))


def _profile(problem: BatchSizeProblem, batch_size: int) -> ReportPowerProfile:
    return ReportPowerProfile(
        batch_size=batch_size,
        hardware=problem.hardware,
        measurements=tuple(
            PowerMeasurement(
                power_limit_w=one.power_limit_w,
                average_power_w=one.average_power_w,
                samples_per_s=problem.workload.samples / one.time_s,
            )
            for one in problem.epochs[batch_size]
        ),
    )


def folded(
    problem: BatchSizeProblem, *, recurrences: int, seed: int, noise: Noise = NO_NOISE, **changes: Any
) -> Folding:
    """The log of a job that recurred, folded."""
    story = recurring(problem, spec_of(problem, **changes), recurrences=recurrences, seed=seed, noise=noise)
    folding, job = Folding(JOB), Job(job_id=JOB)
    command = next(story)
    for number in count(1):
        command_id = f"00000000-0000-7000-8000-{number:012x}"
        now = BEGINNING + timedelta(seconds=number)
        context = Context(command_id=command_id, user=None, now=now, rules=Rules())
        decision = decide(job, command, Facts(), context)
        for part, event in enumerate(decision.events):
            folding.add(
                RecordedEvent(
                    job_id=JOB,
                    seq=folding.last_seq + 1,
                    recorded_at=now,
                    command_id=command_id,
                    part=part,
                    event=event,
                )
            )
        job = decision.job.without_ended_trials()
        try:
            command = story.send(decision.reply)
        except StopIteration:
            return folding
    raise AssertionError("a story ends")
