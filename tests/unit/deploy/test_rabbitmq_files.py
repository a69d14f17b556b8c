"""deploy/rabbitmq holds the topology and the permissions that bso_broker states."""

import json
from pathlib import Path

from bso_broker.topology import client_permissions
from deploy.rabbitmq.definitions import VHOST, files, logins

FOLDER = Path(__file__).parents[3] / "deploy/rabbitmq"


def test_the_files_are_those_that_definitions_py_writes() -> None:
    for path, content in files().items():
        assert path.read_text(encoding="utf-8") == content, "run: python deploy/rabbitmq/definitions.py"


def test_the_virtual_host_is_that_of_the_addresses() -> None:
    assert f"/{VHOST}" in (FOLDER.parent / "make-secrets").read_text(encoding="utf-8")
    topology = json.loads((FOLDER / "topology.json").read_text(encoding="utf-8"))
    assert topology["vhosts"] == [{"name": VHOST}]


def test_a_training_gets_no_more_than_a_client_needs() -> None:
    granted = client_permissions("bso-training")
    (permission,) = [one for one in logins()["permissions"] if one["user"] == "bso-training"]
    assert (permission["configure"], permission["write"], permission["read"]) == (
        granted.configure,
        granted.write,
        granted.read,
    )
