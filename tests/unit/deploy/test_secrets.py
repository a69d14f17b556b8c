"""deploy/make-secrets writes passwords and addresses once, readable by containers and by nobody else."""

import json
import stat
import subprocess
import sys
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from bso.storage.urls import database_url
from bso.tls import VERIFY, tls_options
from bso_broker.connection import BrokerAddress
from bso_workers.settings import read_settings

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    return made(tmp_path / "secrets")


def made(folder: Path) -> Path:
    subprocess.run([sys.executable, DEPLOY / "make-secrets", folder], check=True, capture_output=True)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def test_what_exists_stays_as_it_is(secrets: Path) -> None:
    before = contents(secrets)
    (secrets / "mysql_root_password").unlink()
    made(secrets)
    after = contents(secrets)
    assert after.pop("mysql_root_password") != before.pop("mysql_root_password")
    assert after == before


def test_a_folder_without_one_of_the_logins_is_refused_with_the_remedy(secrets: Path) -> None:
    logins = json.loads((secrets / "rabbitmq_logins.json").read_text())
    logins["users"] = [user for user in logins["users"] if user["name"] != "bso-gateway"]
    (secrets / "rabbitmq_logins.json").chmod(0o644)
    (secrets / "rabbitmq_logins.json").write_text(json.dumps(logins))
    done = subprocess.run(
        [sys.executable, DEPLOY / "make-secrets", secrets], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "has no bso-gateway" in done.stderr) == (1, True), done.stderr


def test_two_installations_share_no_password(tmp_path: Path) -> None:
    one, other = contents(made(tmp_path / "one")), contents(made(tmp_path / "other"))
    assert not set(one.values()) & set(other.values())


def test_the_folder_is_closed_and_the_files_are_readable_inside_containers(secrets: Path) -> None:
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in secrets.rglob("*")}
    assert modes.pop("authority.pem") == 0o400  # in no container
    assert {modes.pop(name) for name in ("rabbitmq_tls", "mysql_tls", "gateway_tls", "trusted")} == {0o755}
    assert set(modes.values()) == {0o444}


def test_a_worker_reads_its_addresses_from_the_files(secrets: Path) -> None:
    settings = read_settings(
        {
            "BSO_DATABASE_URL_FILE": str(secrets / "database_url"),
            "BSO_AMQP_URL_FILE": str(secrets / "worker_amqp_url"),
        }
    )
    assert database_url(settings.database_url).password == (secrets / "mysql_password").read_text().strip()
    assert BrokerAddress(url=settings.amqp_url).login == "bso-worker"


def test_a_migration_has_a_login_of_its_own(secrets: Path) -> None:
    working, migrating = (
        urlsplit((secrets / name).read_text().strip()) for name in ("database_url", "migrate_database_url")
    )
    assert (working.username, migrating.username) == ("bso", "bso-migrate")
    assert working.password != migrating.password
    assert working.path == migrating.path


@pytest.mark.parametrize("name", ["database_url", "migrate_database_url", "worker_amqp_url", "gateway_amqp_url"])
def test_an_address_inside_a_container_names_the_authority_where_compose_mounts_it(secrets: Path, name: str) -> None:
    address = urlsplit((secrets / name).read_text().strip())
    options = tls_options(dict(parse_qsl(address.query)), host=address.hostname)
    assert (options.mode, options.ca) == (VERIFY, Path("/run/trusted/ca.pem"))


def test_the_hash_of_each_login_is_that_of_its_password(secrets: Path) -> None:
    for user in json.loads((secrets / "rabbitmq_logins.json").read_text())["users"]:
        url = urlsplit((secrets / f"{user['name'].removeprefix('bso-')}_amqp_url").read_text().strip())
        assert url.username == user["name"]
        raw = b64decode(user["password_hash"])
        assert raw[4:] == sha256(raw[:4] + (url.password or "").encode()).digest()
