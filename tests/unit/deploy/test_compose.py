"""deploy/compose.yaml is valid, pins what it runs, and runs the commands that the tests run without containers."""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema.validators import validator_for

from bso.credentials import FILE_SUFFIX
from bso_cli.main import app
from bso_gateway.settings import GatewaySettings
from bso_gateway.settings import read_settings as read_gateway_settings
from bso_workers.settings import PREFIX, WorkerSettings

DEPLOY = Path(__file__).parents[3] / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = (DEPLOY / ".env.example").read_text(encoding="utf-8")
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("${BSO_IMAGE")]


def test_it_is_valid_by_the_compose_specification() -> None:
    schema = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    validator = validator_for(specified := json.loads(schema.read_text(encoding="utf-8")))
    assert not list(validator(specified).iter_errors(COMPOSE))


def test_it_has_a_broker_a_database_a_migration_workers_and_gateways() -> None:
    assert list(SERVICES) == ["rabbitmq", "mysql", "migrate", "worker", "gateway"]
    assert OURS == ["migrate", "worker", "gateway"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned_to_a_release(name: str) -> None:
    default = re.fullmatch(r"\$\{\w+:-(?P<image>.+)\}", SERVICES[name]["image"])
    assert default is not None
    assert re.search(r":\d+\.\d+\.\d+(-[a-z]+)?$", default["image"])


@pytest.mark.parametrize("name", OURS)
def test_its_commands_exist_with_these_options(name: str) -> None:
    program, command, *options = SERVICES[name]["command"]
    assert program == "bso"
    known = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]  # a group
    context = known.make_context(command, options, resilient_parsing=False)
    assert context.command is known


@pytest.mark.parametrize("name", OURS)
def test_its_commands_explain_themselves(name: str) -> None:
    _, command, *_ = SERVICES[name]["command"]
    done = subprocess.run(
        [sys.executable, "-m", "bso_cli", command, "--help"], capture_output=True, text=True, check=True
    )
    assert f"bso {command}" in done.stdout or "Usage" in done.stdout


def test_the_worker_gets_only_settings_that_it_knows() -> None:
    fields = {PREFIX + field.upper() for field in WorkerSettings.model_fields}
    noted = {name.removesuffix(FILE_SUFFIX) for name in SERVICES["worker"]["environment"]}
    assert noted <= fields


def test_the_gateway_starts_with_its_settings_behind_its_published_port() -> None:
    noted = {
        name: text.partition(":-")[2].removesuffix("}") if text.startswith("${") else text
        for name, text in SERVICES["gateway"]["environment"].items()
    }
    assert noted.pop("BSO_URL_FILE") == "/run/secrets/gateway_amqp_url"
    settings = read_gateway_settings(noted, url="amqps://bso-gateway:secret@rabbitmq/bso", tokens=True)
    assert settings.names == {"gateway"}
    assert [port.rpartition(":")[2] for port in SERVICES["gateway"]["ports"]] == [str(settings.port)]
    assert f"('127.0.0.1', {settings.port})" in SERVICES["gateway"]["healthcheck"]["test"][-1]


def test_workers_believe_the_gateways_login_alone() -> None:
    assert SERVICES["worker"]["environment"]["BSO_GATEWAYS"] == "bso-gateway"


def test_workers_wait_for_the_migration_and_the_migration_for_the_database() -> None:
    assert SERVICES["migrate"]["depends_on"]["mysql"] == {"condition": "service_healthy"}
    assert SERVICES["worker"]["depends_on"] == {
        "migrate": {"condition": "service_completed_successfully"},
        "rabbitmq": {"condition": "service_healthy"},
    }


@pytest.mark.parametrize(("name", "settings"), [("worker", WorkerSettings), ("gateway", GatewaySettings)])
def test_each_has_the_time_to_drain(name: str, settings: type[WorkerSettings] | type[GatewaySettings]) -> None:
    grace = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert grace > settings.model_fields["drain_timeout_s"].default


def test_no_worker_is_bound_to_one_name_or_port_of_the_machine() -> None:
    assert not {"container_name", "ports", "hostname"} & set(SERVICES["worker"])


def test_the_database_is_not_published() -> None:
    assert "ports" not in SERVICES["mysql"]
    assert COMPOSE["networks"]["workers"] == {"internal": True}
    assert SERVICES["mysql"]["networks"] == ["workers"]


@pytest.mark.parametrize("name", ["rabbitmq", "mysql", "worker", "gateway"])
def test_whatever_stays_up_is_checked_restarted_and_limited(name: str) -> None:
    service = SERVICES[name]
    assert {"test", "interval", "timeout", "retries", "start_period"} <= set(service["healthcheck"])
    assert service["restart"] == "unless-stopped"
    assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"])


def test_what_must_survive_lies_on_volumes() -> None:
    assert SERVICES["rabbitmq"]["volumes"][0] == "rabbitmq-data:/var/lib/rabbitmq"
    assert SERVICES["mysql"]["volumes"][0] == "mysql-data:/var/lib/mysql"
    assert set(COMPOSE["volumes"]) == {"rabbitmq-data", "mysql-data"}


def test_no_password_stands_in_the_file_or_in_the_environment() -> None:
    assert not re.search(r"PASSWORD(?!_FILE)\w*:", TEXT)
    assert not re.search(r"(amqp|mysql)://", TEXT)


def test_every_secret_is_a_file_that_make_secrets_writes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DEPLOY / "make-secrets", tmp_path / "secrets"], check=True, capture_output=True)
    written = {path.name for path in (tmp_path / "secrets").iterdir()}
    needed = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert needed | {Path(one["source"]).name for one in mounted_certificates()} <= written
    assert all(Path(secret["file"]).parent == Path("secrets") for secret in COMPOSE["secrets"].values())


def mounted_certificates() -> list[dict[str, Any]]:
    """The folders with a server's certificate and key, as its service mounts them."""
    return [one for service in SERVICES.values() for one in service.get("volumes", ()) if isinstance(one, dict)]


def test_each_server_sees_its_own_certificate_where_its_configuration_names_it() -> None:
    configurations = {
        "rabbitmq": (DEPLOY / "rabbitmq/rabbitmq.conf").read_text(encoding="utf-8"),
        "mysql": (DEPLOY / "mysql/bso.cnf").read_text(encoding="utf-8"),
        "gateway": yaml.safe_dump([SERVICES["gateway"]["environment"], SERVICES["gateway"]["healthcheck"]], width=1000),
    }
    for name, text in configurations.items():
        seen = {one["target"]: one["source"] for one in SERVICES[name]["volumes"] if isinstance(one, dict)}
        assert seen == {"/run/tls": f"./secrets/{name}_tls", "/run/trusted": "./secrets/trusted"}
        assert {"/run/tls/server.pem", "/run/trusted/ca.pem"} <= set(re.findall(r"/run/[\w/.]+", text))


@pytest.mark.parametrize("name", ["migrate", "worker"])
def test_workers_and_migrations_see_whom_to_trust_and_no_key(name: str) -> None:
    assert [(one["target"], one["source"]) for one in SERVICES[name]["volumes"]] == [
        ("/run/trusted", "./secrets/trusted")
    ]


def test_nobody_changes_certificates_and_a_folder_that_is_missing_is_not_made() -> None:
    assert len(mounted_certificates()) == 8
    for one in mounted_certificates():
        assert (one["type"], one["read_only"], one["bind"]) == ("bind", True, {"create_host_path": False})


def test_only_encrypted_ports_are_published() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert {name: [port.rpartition(":")[2] for port in ports] for name, ports in published.items()} == {
        "rabbitmq": ["5671", "15671"],
        "gateway": ["8443"],
    }


def test_the_key_of_the_authority_and_the_administrators_password_are_seen_by_nobody_who_needs_them_not() -> None:
    seen = {
        name: yaml.safe_dump([service.get("secrets"), service.get("volumes")]) for name, service in SERVICES.items()
    }
    assert not [name for name, what in seen.items() if "authority" in what]
    assert [name for name, what in seen.items() if "root_password" in what] == ["mysql"]
    assert [name for name, what in seen.items() if "migrate_database_url" in what] == ["migrate"]


def test_every_secret_and_config_that_a_service_mounts_is_declared() -> None:
    for kind in ("secrets", "configs"):
        used = {
            one if isinstance(one, str) else one["source"]
            for service in SERVICES.values()
            for one in service.get(kind, ())
        }
        assert used == set(COMPOSE[kind])


def test_every_config_exists() -> None:
    for config in COMPOSE["configs"].values():
        assert (DEPLOY / config["file"]).is_file()


def test_the_example_names_every_variable_with_the_default_of_the_file() -> None:
    used = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", TEXT))
    shown = dict(line.split("=", 1) for line in EXAMPLE.splitlines() if line and not line.startswith("#"))
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", TEXT)) == set(used), "each variable has a default"
    assert shown == used
