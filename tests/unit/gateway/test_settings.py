"""The settings of a gateway."""

import pytest

from bso_gateway.settings import read_settings
from bso_workers.errors import InvalidSettings

OPERATOR = {"BSO_GATEWAY_OPERATOR_URL": "amqp://operator:secret@broker/bso"}


def test_an_operators_login_is_for_the_pages_of_a_broker() -> None:
    settings = read_settings(OPERATOR | {"BSO_URL": "amqp://gateway:secret@broker/bso"})
    assert settings.operator_url == OPERATOR["BSO_GATEWAY_OPERATOR_URL"]
    assert "secret" not in repr(settings)


def test_without_a_broker_an_operators_login_is_a_mistake() -> None:
    with pytest.raises(InvalidSettings, match="operator_url is a login of a broker") as refused:
        read_settings(OPERATOR | {"BSO_URL": "sqlite:////tmp/bso.sqlite"})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("given", ["traefik", "10.0.0.0/99", "10.0.0.7,not-an-address", "10.0.0.7/8", "*"])
def test_a_trusted_proxy_is_an_address_or_a_network(given: str) -> None:
    with pytest.raises(InvalidSettings, match="is no address and no network") as refused:
        read_settings({"BSO_URL": "sqlite:////tmp/bso.sqlite", "BSO_GATEWAY_TRUSTED_PROXIES": given})
    assert "BSO_GATEWAY_TRUSTED_PROXIES" in str(refused.value)


def test_trusted_proxies_are_addresses_and_networks() -> None:
    given = "10.0.0.7, 10.0.0.0/8,::1,fd00::/8"
    settings = read_settings({"BSO_URL": "sqlite:////tmp/bso.sqlite", "BSO_GATEWAY_TRUSTED_PROXIES": given})
    assert settings.trusted_proxies == {"10.0.0.7", "10.0.0.0/8", "::1", "fd00::/8"}


def test_over_a_file_the_policy_of_zeus_jobs_has_to_be_installed_here() -> None:
    at_workers = {"BSO_URL": "amqp://gateway:secret@broker/bso", "BSO_GATEWAY_ZEUS_POLICY": "of_the_team"}
    assert read_settings(at_workers).policy_of_new_jobs == "of_the_team"
    with pytest.raises(InvalidSettings, match="of_the_team is not installed here; known are"):
        read_settings(at_workers | {"BSO_URL": "sqlite:////tmp/bso.sqlite"})
