"""A policy of somebody else's distribution, installed beside ours: by its contract, in the simulator, embedded."""

from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, Environment

pytestmark = pytest.mark.packaging

TRAINING = """
from bso_client import BatchSizeOptimizer, JobSpec

spec = JobSpec(job_id="nightly", batch_sizes=[8, 16], default_batch_size=16, policy="greedy", mab_seed=1)
for trial in BatchSizeOptimizer(spec).trials():
    with trial:
        while not trial.finished:
            trial.on_evaluate(0.95)
print(trial.reason)
"""


@pytest.fixture(scope="module")
def with_policy(bare: Environment, folder: Path) -> Environment:
    """Our distribution with the example's beside it."""
    environment = bare.copy(folder / "with-policy")
    environment.install("pytest", ROOT / "examples" / "policy")
    return environment


def test_it_keeps_the_contract(with_policy: Environment) -> None:
    printed = with_policy.ok("pytest", "-q", ROOT / "examples" / "policy" / "tests", "-p", "no:cacheprovider")
    assert " passed" in printed
    assert "failed" not in printed


def test_it_can_be_simulated(with_policy: Environment) -> None:
    printed = with_policy.ok("bso", "simulate", "single", "--truths", "1", "--policy", "greedy", "--recurrences", "10")
    assert "greedy" in printed


def test_a_training_without_a_server_learns_by_it(with_policy: Environment, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    state = {"BSO_STATE_DIR": str(tmp_path / "state")}
    assert "nothing is known yet; 16 is near the default" in with_policy.ok("python", script, **state)
    assert "16 has cost least" in with_policy.ok("python", script, **state)
    assert "batch size 16 has the least mean cost now" in with_policy.ok("bso", "jobs", "why", "nightly", **state)


def test_where_it_is_not_installed_a_training_says_what_is_missing(bare: Environment, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    ended = bare.run("python", script, BSO_STATE_DIR=str(tmp_path / "state"))
    assert ended.returncode == 1
    assert "policy 'greedy' is not installed here, only curve, pruning_thompson" in ended.stderr
