"""Trainings whose power and speed were measured per limit (the traces of the Zeus paper), profiled as they run."""

import csv
import os
from pathlib import Path

import pytest

from bso.simulator import KNOWN_WORKLOADS, Workload
from tests.fakes.gpus import FakeGpus
from tests.fakes.simulated_training import SimulatedTraining
from tests.integration.client.power.conftest import MakePowerLimit

FOLDER = os.environ.get("BSO_TRACES")
HELD = ("cifar100", "squad", "librispeech", "movielens-1m")
WORKLOADS = [workload for workload in KNOWN_WORKLOADS.values() if workload.dataset in HELD]
pytestmark = pytest.mark.skipif(not FOLDER, reason="BSO_TRACES names no folder with the traces of the Zeus paper")


@pytest.mark.parametrize("gpu", ["a40", "v100"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.dataset)
def test_a_measured_training_ends_up_at_the_limit_at_which_an_epoch_costs_least(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, workload: Workload, gpu: str
) -> None:
    with (Path(str(FOLDER)) / f"summary_power_{gpu}.csv").open(newline="") as file:
        rows = [
            row for row in csv.DictReader(file) if (row["dataset"], row["network"], row["optimizer"]) == workload.key
        ]
    batch_size = max(int(row["batch_size"]) for row in rows)
    at_limit = {float(row["power_limit"]): row for row in rows if int(row["batch_size"]) == batch_size}
    epoch_time_s = {limit_w: float(row["time_per_epoch"]) for limit_w, row in at_limit.items()}
    power_w = {limit_w: float(row["average_power"]) for limit_w, row in at_limit.items()}
    highest_w = max(at_limit)
    cost = {limit_w: (power_w[limit_w] + highest_w) / 2 * epoch_time_s[limit_w] for limit_w in at_limit}

    gpus.add(limit_w=highest_w, default_limit_w=highest_w, max_limit_w=highest_w, min_limit_w=min(at_limit))
    training = SimulatedTraining(gpus, step_time_s=lambda limit: epoch_time_s[limit] / 50, power_w=power_w.__getitem__)
    power_limit = make_power_limit(monitor=training, step_w=25)
    for _ in power_limit.steps(range(60)):
        training.step()

    left_out = set(at_limit) - set(training.limits_w)
    assert all(cost[limit_w] > 1.2 * min(cost.values()) for limit_w in left_out)
    assert power_limit.power_limit_w is not None
    assert cost[power_limit.power_limit_w] == pytest.approx(min(cost.values()))
    assert power_limit.power_limit_w < highest_w
