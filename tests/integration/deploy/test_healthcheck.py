"""The healthcheck of the compose file's gateway, with certificates as one's own authority issues them."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integration.gateway.conftest import StartGateway, start_gateway
from tests.servers import PATIENCE_S
from tests.servers.certificates import Authority

__all__ = ["start_gateway"]  # a fixture

SERVICES = yaml.safe_load((Path(__file__).parents[3] / "deploy/compose.yaml").read_text(encoding="utf-8"))["services"]


@pytest.mark.parametrize(
    ("url", "names", "is_trusted", "is_healthy"),
    [
        (None, ["gateway"], True, True),
        (None, ["gateway", "bso.example"], True, True),
        (None, ["bso.example", "127.0.0.1"], True, False),
        (None, ["gateway"], False, False),
        ("amqp://guest:guest@127.0.0.1:1/", ["gateway"], True, False),
    ],
    ids=["its-name-only", "also-the-name-for-trainings", "other-names", "another-authority", "not-ready"],
)
def test_the_gateways_healthcheck(
    start_gateway: StartGateway, tmp_path: Path, url: str | None, names: list[str], is_trusted: bool, is_healthy: bool
) -> None:
    folders = [tmp_path / name for name in ("ours", "another")]
    for folder in folders:
        folder.mkdir()
    ours, another = map(Authority, folders)
    shown = ours.issue("gateway", *names)
    gateway = start_gateway(url=url, tls_certificate=shown.cert, tls_key=shown.key)
    _, python, option, program = SERVICES["gateway"]["healthcheck"]["test"]
    assert (python, option) == ("python", "-c")
    program = program.replace("/run/trusted/ca.pem", str((ours if is_trusted else another).ca))
    program = program.replace("8443", str(gateway.port))
    done = subprocess.run(
        [sys.executable, option, program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode == 0) == is_healthy, done.stderr
