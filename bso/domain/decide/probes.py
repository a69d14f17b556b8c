"""Epoch costs of other batch sizes, as a training has probed them."""

from __future__ import annotations

import math

from bso.domain.commands import EpochCostProbe, ReportEpochCosts
from bso.domain.decide.contract import Context, Decision, refused_for, unchanged
from bso.domain.events import EpochCostsProbed, ProbedEpochCost
from bso.domain.evolve import apply
from bso.domain.job import Job
from bso.domain.job_spec import MAX_BATCH_SIZES, JobSpec
from bso.domain.progress import MOST_REPORTED, cost_of
from bso.domain.replies import EpochCostsRecorded
from bso.domain.trial import Trial

MOST_UNCERTAIN = 1.0
"""The variance of ln epoch cost above which a probe says nothing."""


def report_epoch_costs(job: Job, trial: Trial, command: ReportEpochCosts, context: Context) -> Decision:
    """Record what was probed. Nothing is recorded of batch sizes that the job does not have, nor of unknown costs.

    That a batch size does not fit in memory is not believed where it is no larger than one that has run.
    """
    problems = _problems(command)
    if problems:
        return refused_for(job, "invalid_epoch_costs", "The epoch costs have values out of range", problems)
    spec, known = job.spec_of(trial), job.knowledge_of(trial)
    fits = max((size for size, arm in known.arms.items() if arm.convergences), default=0)
    too_large = {size for size in command.out_of_memory if size > max(trial.batch_size, fits)}
    probes = [_probed(each, spec, trial) for each in command.probes if each.batch_size in spec.batch_sizes]
    event = EpochCostsProbed(
        trial_number=trial.trial_number,
        version_number=trial.version_number,
        hardware_key=trial.hardware.key,
        batch_size=trial.batch_size,
        month=f"{context.now:%Y-%m}",
        probes=tuple(each for each in probes if each is not None),
        out_of_memory=tuple(size for size in spec.batch_sizes if size in too_large),
        time_s=command.time_s,
        energy_j=command.energy_j or 0.0,
    )
    if not (event.probes or event.out_of_memory or event.time_s or event.energy_j):
        return unchanged(job, EpochCostsRecorded())
    return Decision(job=apply(job, [event]), events=(event,), reply=EpochCostsRecorded())


def _probed(probe: EpochCostProbe, spec: JobSpec, trial: Trial) -> ProbedEpochCost | None:
    """None: its energy counts, and was not measured."""
    if probe.energy_j is None and spec.eta_knob:
        return None
    cost = cost_of(
        energy_j=probe.energy_j or 0.0,
        time_s=probe.time_s,
        eta_knob=spec.eta_knob,
        max_power_w=trial.hardware.max_power_w,
    )
    if cost <= 0.0:
        return None
    return ProbedEpochCost(batch_size=probe.batch_size, cost=cost, ln_cost=math.log(cost), variance=probe.variance)


def _problems(command: ReportEpochCosts) -> dict[str, str]:
    problems: dict[str, str] = {}
    sizes = [*(probe.batch_size for probe in command.probes), *command.out_of_memory]
    if len(sizes) > MAX_BATCH_SIZES:
        problems["probes"] = f"must be of at most {MAX_BATCH_SIZES} batch sizes, got {len(sizes)}"
    elif len(sizes) != len(set(sizes)):
        problems["probes"] = "must name each batch size once, those out of memory included"
    for index, probe in enumerate(command.probes[:MAX_BATCH_SIZES]):
        energy_j = 1.0 if probe.energy_j is None else probe.energy_j
        if not (
            0 < probe.time_s <= MOST_REPORTED
            and 0 < energy_j <= MOST_REPORTED
            and 0 <= probe.variance <= MOST_UNCERTAIN
        ):
            limits = f"positive numbers of seconds and joules, and a variance from 0 to {MOST_UNCERTAIN:g}"
            problems[f"probes.{index}"] = f"must hold {limits}, got {probe}"
    if not (0 <= command.time_s <= MOST_REPORTED and 0 <= (command.energy_j or 0.0) <= MOST_REPORTED):
        problems["time_s"] = f"must be 0 or more, as energy_j, and finite; got {command.time_s}, {command.energy_j}"
    return problems
