"""The alerting rules, tested by Prometheus itself."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RULES = Path(__file__).parents[3] / "deploy/prometheus"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts-test.yaml")])
def test_prometheus_takes_the_rules_and_each_fires_when_it_should(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        reason = "no promtool on this machine; Debian has it in the package prometheus"
        if os.environ.get("CI"):
            pytest.fail(f"CI is set, and there is {reason}")
        pytest.skip(reason)
    done = subprocess.run([promtool, *arguments], cwd=RULES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
