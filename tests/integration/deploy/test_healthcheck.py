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


NOWHERE = "amqp://guest:guest@127.0.0.1:1/"


def is_healthy(start: StartGateway, authority: Authority, *names: str, url: str | None = None, trusted: Path) -> bool:
    """What the healthcheck says of a gateway whose certificate is for these names."""
    shown = authority.issue("gateway", *names)
    gateway = start(url=url, tls_certificate=shown.cert, tls_key=shown.key)
    _, python, option, program = SERVICES["gateway"]["healthcheck"]["test"]
    assert (python, option) == ("python", "-c")
    program = program.replace("/run/trusted/ca.pem", str(trusted)).replace("8443", str(gateway.port))
    done = subprocess.run([sys.executable, option, program], capture_output=True, timeout=PATIENCE_S, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("names", [["gateway"], ["gateway", "bso.example"]])
def test_a_certificate_for_the_service_will_do(
    start_gateway: StartGateway, authority: Authority, names: list[str]
) -> None:
    assert is_healthy(start_gateway, authority, *names, trusted=authority.ca)


def test_a_certificate_that_no_client_takes_will_not(
    start_gateway: StartGateway, authority: Authority, tmp_path: Path
) -> None:
    assert not is_healthy(start_gateway, authority, "bso.example", "127.0.0.1", trusted=authority.ca)
    assert not is_healthy(start_gateway, authority, "gateway", trusted=Authority(tmp_path).ca)


def test_a_gateway_that_is_not_ready_is_not_healthy(start_gateway: StartGateway, authority: Authority) -> None:
    assert not is_healthy(start_gateway, authority, "gateway", url=NOWHERE, trusted=authority.ca)
