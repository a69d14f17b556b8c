"""The simulator on one core: every epoch report of every trial goes through decide."""

import time

from bso.domain.policies import own_policies
from bso.simulator import BatchSizeProblem, Run, Workload, simulate
from bso.simulator.traces import MeasuredEpoch
from tests.benchmarks.figures import Figure, Figures
from tests.benchmarks.laboratory import Laboratory

RECURRENCES = 200
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
EPOCHS = (16, 9, 7, 6, 6, 7, 9, 13, 20, 34)
"""To the target, by batch size: about ten reports per trial, as in the mean of the paper's workloads."""


def measure(laboratory: Laboratory) -> list[Figure]:
    """Trials and reports per second of CPU time, by policy."""
    figures = Figures(benchmark="simulator")
    problem, recurrences = steep_problem(), laboratory.effort.of(RECURRENCES)
    for policy in own_policies():
        trials, reports = [], []
        for seed in range(laboratory.effort.repetitions):
            began_s = time.process_time()
            run = simulate(problem, {"policy": policy}, recurrences=recurrences, seed=seed)
            took_s = time.process_time() - began_s
            trials.append(len(run.trials) / took_s)
            reports.append(_reports(run) / took_s)
        figures.add(f"{policy}; {recurrences} recurrences", "trials", "1/s of CPU", trials)
        figures.add(f"{policy}; {recurrences} recurrences", "reports", "1/s of CPU", reports)
    return figures.found


def steep_problem() -> BatchSizeProblem:
    """A problem with ten batch sizes, an optimum between them, and a larger one that does not converge."""
    workload = Workload(
        dataset="bench",
        network="none",
        optimizer="none",
        target_metric=0.9,
        max_epochs=30,
        default_batch_size=1024,
    )
    return BatchSizeProblem(
        workload=workload,
        gpu="bench",
        max_power_w=300.0,
        runs={
            size: (epochs - 1, epochs, epochs + 1) if epochs < 30 else (None,)
            for size, epochs in zip(SIZES, EPOCHS, strict=True)
        },
        epochs={
            size: (
                MeasuredEpoch(power_limit_w=150.0, time_s=1.2 * (20 + 2000 / size), average_power_w=140.0),
                MeasuredEpoch(power_limit_w=300.0, time_s=20 + 2000 / size, average_power_w=250.0),
            )
            for size in SIZES
        },
    )


def _reports(run: Run) -> int:
    return sum(trial.epochs for trial in run.trials)
