"""Real errors of a GPU that is out of memory: what they are taken for, and how a training goes on."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bso.domain.trial import OUT_OF_MEMORY, Outcome, reason_code
from bso_client import BatchSizeOptimizer, JobSpec
from tests.gpu.memory_errors import FULL, NOTHING, STORIES
from tests.integration.client.scripts import recorded_trials
from tests.servers import PATIENCE_S

SPEC = JobSpec(job_id="job", batch_sizes=[32, 64, 128], default_batch_size=128, target_metric=0.9)
ROOT = Path(__file__).parents[2]
MIB_A_SAMPLE = 8


def train(torch: Any) -> list[tuple[int, Outcome | None]]:
    """One recurrence, each of whose trainings takes memory by its batch size: what was trained, and how it ended."""
    seen = []
    with BatchSizeOptimizer(SPEC) as bso:
        for trial in bso.trials():
            with trial:
                while not trial.finished:
                    samples = torch.ones(trial.batch_size, MIB_A_SAMPLE * 2**18, device="cuda")
                    trial.on_evaluate(0.95 * float(samples.mean()))
            samples = None
            seen.append((trial.batch_size, trial.outcome))
    return seen


@pytest.fixture
def small_gpu(torch: Any) -> None:
    """One in whose memory a batch of 64 fits, and one of 128 does not."""
    whole_mib = torch.cuda.get_device_properties(0).total_memory / 2**20
    torch.cuda.set_per_process_memory_fraction(96 * MIB_A_SAMPLE / whole_mib)


@pytest.mark.usefixtures("small_gpu")
def test_a_batch_size_that_does_not_fit_is_left_for_a_smaller_one_and_tried_no_more_than_twice(
    torch: Any, tmp_path: Path
) -> None:
    nights = [train(torch) for _ in range(6)]

    assert nights[0] == [(128, Outcome.INFEASIBLE), (64, Outcome.CONVERGED)]
    assert all(night[-1][1] is Outcome.CONVERGED for night in nights)
    failed = [trial for trial in recorded_trials(tmp_path) if trial.outcome is not Outcome.CONVERGED]
    assert {(trial.batch_size, reason_code(trial.outcome_reason)) for trial in failed} == {(128, OUT_OF_MEMORY)}
    assert len(failed) <= 2


@pytest.fixture(scope="module")
def said_by_a_full_gpu() -> dict[str, Any]:
    return said("full")


def said(story: str) -> dict[str, Any]:
    """What a process says of the errors that it met, by the name of what was tried."""
    command = [sys.executable, "-m", "tests.gpu.memory_errors", story]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("name", FULL)
def test_what_finds_a_gpu_full_is_recognised(said_by_a_full_gpu: dict[str, Any], name: str) -> None:
    found = said_by_a_full_gpu[name]
    if found["text"] == NOTHING:
        pytest.skip("it found room in what the driver keeps back")

    assert found["is_out_of_memory"], found


@pytest.mark.parametrize(("story", "library"), STORIES.items())
def test_an_allocation_that_is_too_large_is_recognised(story: str, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    for name, found in said(story).items():
        assert found["is_out_of_memory"], (name, found)
