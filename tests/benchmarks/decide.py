"""The rules alone: no store, no message; with a short and a long history behind the job."""

import math
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from typing import Any

from bso.domain.commands import BeginTrial, Command, RegisterJob, ReportEpoch, Request
from bso.domain.decide import Context, Decision, Known, Rules, decide, facts_for
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.job import Job, JobVersion
from bso.domain.job_spec import JobSpec
from bso.domain.knowledge import Knowledge
from bso.domain.randomness import standard_normal
from bso.domain.replies import TrialBegun
from bso.policies.curve.beliefs import MOST_KEPT
from bso.policies.curve.cost_records import EpochCostKnowledge, EpochCostRecord
from bso.policies.curve.epoch_records import EpochKnowledge, EpochRecord, RunSums
from bso.policies.curve.memory import NAME as CURVE
from bso.schema.codec import decode_command, encode_command, encode_reply
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.laboratory import Laboratory

HARDWARE = HardwareKind(gpu_model="A40", max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
ARMS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SIZES = (12, 64)
HISTORIES = (10, 100, 10_000)
"""Ended trials: still exploring; every arm sampled and the window full; years later."""
NOW = datetime(2030, 1, 1, tzinfo=UTC)
RULES = Rules()
NOTHING_KNOWN = Known()
CALLS = 300
FEW_JOBS, MANY_JOBS, EPOCHS = 16, 256, 4
_PAPER = {"policy": "pruning_thompson", "num_pruning_rounds": 0}
SPECS: Mapping[str, Mapping[str, Any]] = {
    "": {"policy": "curve"},
    ", pruning_thompson": _PAPER,
    ", pruning_thompson, window of 100 trials": {**_PAPER, "window_size": 10},
}


Question = tuple[Job, Request]
ASKED = {"begin_trial": "begin", "report_epoch": "report", "report_epoch, the last": "last_report"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A job beyond the pruning stage with one running trial, and commands to decide on."""

    begin: Question
    report: Question
    last_report: Question


def measure(laboratory: Laboratory) -> list[Figure]:
    """CPU time per call of decide."""
    figures = Figures(benchmark="decide")
    histories = [*HISTORIES[:-1], laboratory.effort.of(HISTORIES[-1])]
    for which, spec in SPECS.items():
        scenes = {ended: scene_after(ended, spec) for ended in histories}
        for case, asked in ASKED.items():
            _compare(laboratory, figures, f"{case}{which}", {ended: getattr(scenes[ended], asked) for ended in scenes})
    for count in SIZES:
        values = [
            cpu_us(_choosing(count), calls=laboratory.effort.of(CALLS)) for _ in range(laboratory.effort.repetitions)
        ]
        figures.add(f"begin_trial; {count} batch sizes, all tried", "CPU", "us", values)
    few, many = (
        [cpu_us(_reporting(jobs), calls=EPOCHS * jobs) for _ in range(laboratory.effort.repetitions)]
        for jobs in (FEW_JOBS, MANY_JOBS)
    )
    case = f"report_epoch; {SIZES[0]} batch sizes, all tried; {MANY_JOBS} jobs in turn"
    figures.add(case, "CPU", "us", many, peer=f"{FEW_JOBS} jobs in turn", peer_values=few)
    return figures.found


def _choosing(count: int) -> Callable[[], Decision]:
    """Begins a trial of one job after the other, so that no belief is remembered."""
    jobs = cycle([_all_tried(count, seed) for seed in range(2 * MOST_KEPT)])
    begin = _request(BeginTrial(hardware=HARDWARE, recurrence_id="next"))
    return lambda: _decided(next(jobs), begin)


def _reporting(jobs: int) -> Callable[[], object]:
    """Each call reports an epoch of the next one of so many jobs, in turn; each has reported once."""
    running = [_begun(_all_tried(SIZES[0], seed)) for seed in range(jobs)]
    turns = cycle(range(jobs))
    epochs = [0] * jobs

    def report() -> None:
        number = next(turns)
        job, begun = running[number]
        epochs[number] += 1
        after = _decided(job, _report(begun, epochs[number], metric=0.5))
        running[number] = after.job, begun

    for _ in range(jobs):
        report()
    return report


def _all_tried(count: int, seed: int) -> Job:
    """A job that has run so many batch sizes one to five times each, with noise in epochs and in costs."""
    sizes = tuple(8 * number for number in range(1, count + 1))
    spec = JobSpec(batch_sizes=sizes, default_batch_size=sizes[count // 2], target_metric=0.9, policy="curve")
    runs, epochs, costs = {}, {}, {}
    for size in sizes:
        octaves = math.log2(size / spec.default_batch_size)
        off = (standard_normal(seed, size, each) for each in range(2))
        runs[size] = 1 + (seed + size // 8) % 5
        epochs[size] = RunSums(weight=runs[size], mean=3.0 + 0.2 * octaves + 0.1 * next(off))
        costs[size] = RunSums(weight=runs[size], mean=10.0 - 0.3 * octaves + 0.1 * next(off))
    epoch_costs = EpochCostKnowledge(
        records={size: EpochCostRecord(sums=costs[size]) for size in sizes},
        squares=0.2,
        freedom=10.0,
        runs=sum(runs.values()),
    )
    knowledge = Knowledge(hardware=HARDWARE, memories={CURVE: epoch_costs})
    known = EpochKnowledge(
        records={
            size: EpochRecord(
                sums=epochs[size], squares=0.01 * runs[size], converged=float(runs[size]), looks=runs[size]
            )
            for size in sizes
        }
    )
    version = JobVersion(
        version_number=1, spec=spec, seed=seed, memories={CURVE: known}, knowledge={HARDWARE.key: knowledge}
    )
    ended = sum(runs.values())
    return Job(
        job_id="bench",
        current_version=1,
        versions={1: version},
        last_trial_number=ended,
        last_recurrence_number=ended,
    )


def _compare(laboratory: Laboratory, figures: Figures, case: str, questions: dict[int, Question]) -> None:
    calls = laboratory.effort.of(CALLS)
    found: dict[int, list[float]] = {ended: [] for ended in questions}
    on_the_wire: list[float] = []
    shortest = min(questions)
    for _ in range(laboratory.effort.repetitions):
        on_the_wire.append(cpu_us(_wire(*questions[shortest]), calls=calls))
        for ended, question in questions.items():
            found[ended].append(cpu_us(partial(_decided, *question), calls=calls))
    peer, peer_values = "JSON of command and reply", on_the_wire
    for ended, values in found.items():
        figures.add(f"{case}; {ended} ended", "CPU", "us", values, peer=peer, peer_values=peer_values)
        peer, peer_values = f"{ended} ended", values


def _decided(job: Job, request: Request) -> Decision:
    facts = facts_for(job, request.command, NOTHING_KNOWN, since=())
    context = Context(command_id=request.command_id, user=request.user, now=NOW, rules=RULES)
    return decide(job, request.command, facts, context)


def _wire(job: Job, request: Request) -> Callable[[], object]:
    message, reply = encode_command(request), _decided(job, request).reply

    def both() -> object:
        decode_command(message)
        return encode_reply(reply, command_id=request.command_id, job_id=request.job_id)

    return both


def cpu_us(call: Callable[[], object], *, calls: int) -> float:
    """CPU time of one call, on the average of so many."""
    call()
    began_s = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began_s) / calls * 1e6


def scene_after(ended: int, changes: Mapping[str, Any]) -> Scene:
    """A job that has so many ended trials behind it: as an engine loads it, without those."""
    spec = {
        "batch_sizes": ARMS,
        "default_batch_size": 64,
        "target_metric": 0.9,
        "mab_seed": 1,
        "early_stopping": False,
        **changes,
    }
    job = _decided(Job(job_id="bench"), _request(RegisterJob(spec=spec))).job
    for _ in range(ended):
        job, begun = _begun(job)
        job = _decided(job, _report(begun, 1, metric=0.95)).job
        job = replace(job, trials={})
    job, begun = _begun(job)
    return Scene(
        begin=(job, _request(BeginTrial(hardware=HARDWARE, recurrence_id="next"))),
        report=(job, _report(begun, 1, metric=0.5)),
        last_report=(job, _report(begun, 1, metric=0.95)),
    )


def _begun(job: Job) -> tuple[Job, TrialBegun]:
    decision = _decided(job, _request(BeginTrial(hardware=HARDWARE)))
    assert isinstance(decision.reply, TrialBegun), decision.reply
    return decision.job, decision.reply


def _report(begun: TrialBegun, epoch: int, *, metric: float) -> Request:
    # Costs that differ by arm and by trial, without randomness.
    seconds = 100.0 + abs(begun.batch_size - 256) / 10 + begun.trial_number % 7
    return _request(
        ReportEpoch(
            trial_number=begun.trial_number,
            trial_id=begun.trial_id,
            epoch=float(epoch),
            time_s=seconds,
            energy_j=seconds * 250.0,
            metric=metric,
        )
    )


def _request(command: Command) -> Request:
    return Request(command_id=str(uuid.uuid4()), job_id="bench", command=command)
