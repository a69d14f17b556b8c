"""deploy/kubernetes runs the same commands with the same settings as the compose file."""

import subprocess
import textwrap
from pathlib import Path
from typing import Any

import yaml

from bso_broker.topology import COMMAND_QUEUE
from bso_gateway.settings import GatewaySettings, read_settings
from bso_workers.settings import WorkerSettings

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


def objects(name: str) -> dict[str, dict[str, Any]]:
    text = (DEPLOY / "kubernetes" / name).read_text(encoding="utf-8")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workload["spec"]["template"]["spec"]
    return found


WORKER = objects("worker.yaml")
GATEWAY = objects("gateway.yaml")
MIGRATE = objects("migrate.yaml")["Job"]
WORKLOADS = (WORKER["Deployment"], GATEWAY["Deployment"], MIGRATE)


def test_the_commands_are_those_of_the_compose_file() -> None:
    assert pod(WORKER["Deployment"])["containers"][0]["args"] == COMPOSE["worker"]["command"]
    assert pod(GATEWAY["Deployment"])["containers"][0]["args"] == COMPOSE["gateway"]["command"]
    assert pod(MIGRATE)["containers"][0]["args"] == COMPOSE["migrate"]["command"]


def test_the_settings_are_those_of_the_compose_file() -> None:
    for name, workload in (("worker", WORKER), ("gateway", GATEWAY)):
        noted = {one["name"]: one["value"] for one in pod(workload["Deployment"])["containers"][0]["env"]}
        assert noted.keys() <= set(COMPOSE[name]["environment"])
    for name in ("BSO_DATABASE_URL_FILE", "BSO_AMQP_URL_FILE", "BSO_REQUIRE_USER_ID", "BSO_GATEWAYS"):
        assert name in {one["name"] for one in pod(WORKER["Deployment"])["containers"][0]["env"]}


def test_a_gateway_starts_with_its_settings_and_is_known_by_the_name_of_its_service() -> None:
    noted = {one["name"]: one["value"] for one in pod(GATEWAY["Deployment"])["containers"][0]["env"]}
    settings = read_settings(noted, url="amqp://bso-gateway:secret@rabbitmq/bso", tokens=True)
    service = GATEWAY["Service"]["metadata"]["name"]
    assert {service, f"{service}.bso.svc"} <= settings.names
    [port] = pod(GATEWAY["Deployment"])["containers"][0]["ports"]
    assert settings.port == port["containerPort"]


def test_no_service_of_the_cluster_sets_a_setting() -> None:
    # Else the Service bso-gateway would set BSO_GATEWAY_PORT=tcp://...
    assert all(pod(workload)["enableServiceLinks"] is False for workload in WORKLOADS)


def test_a_gateway_believes_no_proxy_until_its_address_is_filled_in() -> None:
    noted = {one["name"]: one["value"] for one in pod(GATEWAY["Deployment"])["containers"][0]["env"]}
    settings = read_settings(noted, url="amqp://bso-gateway:secret@rabbitmq/bso", tokens=True)
    assert not settings.trusted_proxies


def test_a_pod_has_the_time_to_drain() -> None:
    for workload, settings in ((WORKER, WorkerSettings), (GATEWAY, GatewaySettings)):
        grace_s = pod(workload["Deployment"])["terminationGracePeriodSeconds"]
        assert grace_s >= settings.model_fields["drain_timeout_s"].default + 10


def test_liveness_and_readiness_are_different_questions() -> None:
    for workload in (WORKER, GATEWAY):
        container = pod(workload["Deployment"])["containers"][0]
        paths = {probe: container[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")}
        assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}


def test_every_selector_finds_its_pods() -> None:
    for workload in (WORKER, GATEWAY):
        labels = workload["Deployment"]["spec"]["template"]["metadata"]["labels"]
        assert workload["Deployment"]["spec"]["selector"]["matchLabels"] == labels
        assert workload["Service"]["spec"]["selector"] == labels
        assert workload["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_nothing_runs_as_root_or_may_write_or_become_more() -> None:
    for workload in WORKLOADS:
        assert pod(workload)["securityContext"]["runAsNonRoot"] is True
        for container in pod(workload)["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_every_file_that_is_read_is_a_key_of_the_secret() -> None:
    made = (DEPLOY / "kubernetes/kustomization.yaml").read_text(encoding="utf-8")
    for workload in WORKLOADS:
        for one in pod(workload)["containers"][0]["env"]:
            if one["name"].endswith("_FILE"):
                assert f"--from-file={Path(one['value']).name}=" in made


def secrets(workload: dict[str, Any]) -> dict[str, str]:
    """The secrets that a pod mounts, by the folder."""
    names = {one["name"]: one["secret"]["secretName"] for one in pod(workload)["volumes"] if "secret" in one}
    mounts = pod(workload)["containers"][0]["volumeMounts"]
    return {one["mountPath"]: names[one["name"]] for one in mounts if one["name"] in names}


def test_workers_see_no_login_that_may_change_tables() -> None:
    assert secrets(WORKER["Deployment"]) == {"/run/secrets/bso": "bso-addresses", "/run/trusted": "bso-ca"}
    assert secrets(GATEWAY["Deployment"]) == {"/run/secrets/bso": "bso-gateway-address", "/run/trusted": "bso-ca"}
    assert secrets(MIGRATE) == {"/run/secrets/bso": "bso-migrate-address", "/run/trusted": "bso-ca"}


def test_every_secret_is_made_with_the_keys_that_are_read() -> None:
    made = (DEPLOY / "kubernetes/kustomization.yaml").read_text(encoding="utf-8").replace("\\\n#", "")
    for workload in WORKLOADS:
        for name in secrets(workload).values():
            assert f"create secret generic {name} " in made
    asked = objects("scaledobject.yaml")["TriggerAuthentication"]["spec"]["secretTargetRef"]
    for one in asked:
        [line] = [line for line in made.splitlines() if f"create secret generic {one['name']} " in line]
        assert f"={one['key']}=" in line


def test_workers_are_scaled_on_the_queue_of_commands() -> None:
    scaled = objects("scaledobject.yaml")["ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == WORKER["Deployment"]["metadata"]["name"]
    assert scaled["spec"]["triggers"][0]["metadata"]["queueName"] == COMMAND_QUEUE


def test_everything_that_is_applied_exists() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text(encoding="utf-8"))
    assert all((DEPLOY / "kubernetes" / name).is_file() for name in kustomization["resources"])


def test_the_addresses_that_the_page_makes_are_their_owners_and_end_without_a_line(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs/platform-engineer.md").read_text(encoding="utf-8")
    commands = textwrap.dedent(page.partition("logins and addresses.")[2].partition("```bash\n")[2].partition("```")[0])
    (tmp_path / "deploy").symlink_to(DEPLOY)
    subprocess.run(
        ["bash", "-e", "-c", "kubectl() { :; }; umask 022\n" + commands], cwd=tmp_path, capture_output=True, check=True
    )
    for name, host in (
        ("amqp_url", "rabbitmq"),
        ("gateway_amqp_url", "rabbitmq"),
        ("database_url", "mysql"),
        ("migrate_database_url", "mysql"),
    ):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
        address = (tmp_path / name).read_text(encoding="utf-8")
        assert f"@{host}.bso.svc:" in address
        assert address.endswith("?tls_ca=/run/trusted/ca.pem")
