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
