"""The benchmarks run: what they find is for people to judge."""

import json
import subprocess
import sys

import pytest

from bso.domain.policies import own_policies


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_rules_are_measured_and_printed() -> None:
    assert "report_epoch; 100 ended" in run("--quick", "--only", "decide")


def test_the_simulator_is_measured_with_every_policy() -> None:
    printed = run("--quick", "--only", "simulator")
    assert all(f"{policy}; 20 recurrences" in printed for policy in own_policies())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_benchmark_runs_on_its_private_servers() -> None:
    found = json.loads(run("--quick", "--json"))
    names = {figure["benchmark"] for figure in found["figures"]}
    assert names == {
        "decide",
        "simulator",
        "policies",
        "engine",
        "rpc",
        "workers",
        "client",
        "epochs",
        "growth",
        "many",
    }
