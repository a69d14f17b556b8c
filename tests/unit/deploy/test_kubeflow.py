"""examples/kubeflow: what the API servers would accept, and what bso needs of it."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from kubeflow.training import models as operator_v1
from kubeflow_trainer_api import models as trainer_v2
from kubernetes.client import models as kubernetes

from bso.domain.identifiers import identifier_problem

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/kubeflow"
FILES = sorted(FOLDER.glob("*.yaml"))
TRAINER = {
    "TrainJob": trainer_v2.TrainerV1alpha1TrainJob,
    "TrainingRuntime": trainer_v2.TrainerV1alpha1TrainingRuntime,
    "ClusterTrainingRuntime": trainer_v2.TrainerV1alpha1ClusterTrainingRuntime,
}
OTHERS = {
    ("kubeflow.org/v1", "PyTorchJob"): "KubeflowOrgV1PyTorchJob",
    ("batch/v1", "CronJob"): "V1CronJob",
    ("v1", "ConfigMap"): "V1ConfigMap",
    ("v1", "PersistentVolumeClaim"): "V1PersistentVolumeClaim",
    ("v1", "ServiceAccount"): "V1ServiceAccount",
    ("rbac.authorization.k8s.io/v1", "Role"): "V1Role",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "V1RoleBinding",
}
PLAIN = {"str": str, "int": int, "bool": bool, "object": object}


def objects() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, one) for path in FILES for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [one for _, one in objects() if one["kind"] == kind]


def validate(manifest: dict[str, Any]) -> None:
    """Raise unless the manifest is as its schema says: required fields, types, and no field that it does not know."""
    if manifest["apiVersion"] == "trainer.kubeflow.org/v1alpha1":
        model = TRAINER[manifest["kind"]]
        read = model.from_dict(manifest)  # raises on what is missing or of another type, and drops what is unknown
        assert read is not None
        assert read.to_dict() == manifest
        return
    _check(manifest, OTHERS[manifest["apiVersion"], manifest["kind"]], manifest["kind"])


def _check(value: Any, expected: str, where: str) -> None:
    """Hold a value against a type as the clients of Kubernetes and of the operator v1 write it."""
    if found := re.fullmatch(r"list\[(.+)\]", expected):
        assert isinstance(value, list), where
        for index, one in enumerate(value):
            _check(one, found[1], f"{where}[{index}]")
    elif found := re.fullmatch(r"dict\(str, (.+)\)", expected):
        assert isinstance(value, dict), where
        for key, one in value.items():
            _check(one, "object" if expected.startswith("dict(str, str") else found[1], f"{where}.{key}")
    elif expected in PLAIN:
        assert isinstance(value, PLAIN[expected]), f"{where} must be {expected}, is {value!r}"
    else:
        _check_object(value, _model(expected), where)


def _check_object(value: Any, model: Any, where: str) -> None:
    assert isinstance(value, dict), where
    types = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    assert set(value) <= set(types), f"{where} has no {set(value) - set(types)}"
    model(**{name: value.get(key) for name, key in model.attribute_map.items()})  # raises on what is missing
    for key, one in value.items():
        _check(one, types[key], f"{where}.{key}")


def _model(name: str) -> Any:
    modules: list[ModuleType] = [operator_v1, kubernetes]
    return next(getattr(module, name) for module in modules if hasattr(module, name))


@pytest.mark.parametrize("manifest", [pytest.param(one, id=f"{name}:{one['kind']}") for name, one in objects()])
def test_each_manifest_is_as_its_schema_says(manifest: dict[str, Any]) -> None:
    validate(manifest)


@pytest.mark.parametrize("kind", ["TrainJob", "TrainingRuntime", "PyTorchJob", "CronJob"])
def test_a_manifest_with_a_slip_is_not(kind: str) -> None:
    for path in slips(of_kind(kind)[0]):
        with pytest.raises((AssertionError, ValueError, TypeError)):
            validate(path)


def slips(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The manifest with a field that does not exist, at every depth, and with a list where an object belongs."""
    text = yaml.safe_dump(manifest)
    yield yaml.safe_load(re.sub(r"\bname:", "nane:", text))
    yield yaml.safe_load(re.sub(r"^spec:", "sepc:", text, flags=re.MULTILINE))
    yield {**manifest, "spec": {**manifest["spec"], "restart": True}}
    yield {**manifest, "spec": [manifest["spec"]]}


def trainings() -> Iterator[Any]:
    """Each training's file, pod and container, with an id."""
    for name, one in objects():
        templates: dict[str, Any] = {}
        if one["kind"] == "TrainingRuntime":
            [job] = one["spec"]["template"]["spec"]["replicatedJobs"]
            templates = {"node": job["template"]["spec"]["template"]}
        if one["kind"] == "PyTorchJob":
            templates = {kind: one["template"] for kind, one in one["spec"]["pytorchReplicaSpecs"].items()}
        for kind, template in templates.items():
            yield pytest.param(name, template["spec"], template["spec"]["containers"][0], id=f"{name}:{kind}")


TRAININGS = pytest.mark.parametrize(("name", "pod", "container"), list(trainings()))


@TRAININGS
def test_each_training_gets_the_address_and_its_recurrence(
    name: str, pod: dict[str, Any], container: dict[str, Any]
) -> None:
    noted = {one["name"]: one for one in container["env"]}
    if "embedded" in name:
        assert noted["BSO_URL"]["value"].startswith(f"sqlite:///{noted['BSO_STATE_DIR']['value']}/")
    else:
        assert noted["BSO_URL"]["valueFrom"]["secretKeyRef"] == {"name": "bso", "key": "url"}
    read = {key: _source(one)["fieldRef"]["fieldPath"] for key, one in noted.items() if "fieldRef" in _source(one)}
    made_of = re.findall(r"\$\((\w+)\)", noted["BSO_RECURRENCE_ID"].get("value", "$(BSO_RECURRENCE_ID)"))
    assert made_of
    assert set(made_of) <= set(read)
    assert all(path.startswith("metadata.labels['") for path in read.values())  # of all pods, also after a restart


def _source(variable: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = variable.get("valueFrom", {})
    return found


@TRAININGS
def test_what_is_written_to_can_be_written_to(name: str, pod: dict[str, Any], container: dict[str, Any]) -> None:
    mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    state = next(one["value"] for one in container["env"] if one["name"] == "BSO_STATE_DIR")
    assert volumes[mounted[state]].keys() & {"emptyDir", "persistentVolumeClaim"}
    assert ("persistentVolumeClaim" in volumes[mounted[state]]) == ("embedded" in name)
    assert pod["securityContext"]["runAsNonRoot"] is True


def test_a_recurrence_of_a_trainjob_has_a_name_that_bso_accepts() -> None:
    name = "n" * 57 + "-abcde"  # as long as Kubernetes allows
    assert identifier_problem(f"{name}.123e4567-e89b-12d3-a456-426614174000") is None


@pytest.mark.parametrize("runtime", of_kind("TrainingRuntime"), ids=lambda one: one["metadata"]["name"])
def test_exit_code_75_and_a_preemption_restart_the_whole_training_and_do_not_count(runtime: dict[str, Any]) -> None:
    jobs = runtime["spec"]["template"]["spec"]
    [node] = jobs["replicatedJobs"]
    job = node["template"]["spec"]
    assert (job["backoffLimit"], job["template"]["spec"]["restartPolicy"]) == (0, "Never")
    wanted = {75 for rule in job["podFailurePolicy"]["rules"] if 75 in rule.get("onExitCodes", {}).get("values", [])}
    assert wanted == {75}
    assert {rule["action"] for rule in job["podFailurePolicy"]["rules"]} == {"FailJob"}
    [rule] = jobs["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("RestartJobSetAndIgnoreMaxRestarts", ["PodFailurePolicy"])
    assert rule["targetReplicatedJobs"] == [node["name"]]
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])  # jobset's own rule of names
    assert node["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"


def test_the_operator_v1_restarts_what_exits_with_75() -> None:
    for job in of_kind("PyTorchJob"):
        assert {one["restartPolicy"] for one in job["spec"]["pytorchReplicaSpecs"].values()} == {"OnFailure"}
        assert job["spec"]["runPolicy"]["backoffLimit"] > 0


def test_each_recurrence_gets_a_name_of_its_own() -> None:
    for job in of_kind("TrainJob") + of_kind("PyTorchJob"):
        assert set(job["metadata"]) == {"generateName"}


def test_the_runtimes_that_are_referred_to_exist() -> None:
    names = {one["metadata"]["name"] for one in of_kind("TrainingRuntime")}
    for job in of_kind("TrainJob"):
        assert job["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
        assert job["spec"]["runtimeRef"]["name"] in names


def test_the_cronjob_creates_the_trainjob_and_may_do_no_more() -> None:
    [config], [cron], [role] = of_kind("ConfigMap"), of_kind("CronJob"), of_kind("Role")
    job = yaml.safe_load(config["data"]["trainjob.yaml"])
    assert job == yaml.safe_load((FOLDER / "trainjob-single.yaml").read_text(encoding="utf-8"))
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert pod["containers"][0]["args"][1].endswith("/trainjob.yaml")
    assert role["rules"] == [{"apiGroups": ["trainer.kubeflow.org"], "resources": ["trainjobs"], "verbs": ["create"]}]
    assert pod["serviceAccountName"] == role["metadata"]["name"]
    assert cron["spec"]["jobTemplate"]["spec"]["backoffLimit"] == 0


def test_the_embedded_runtime_differs_in_where_it_decides_alone() -> None:
    ordinary, embedded = (
        next(one for one in of_kind("TrainingRuntime") if one["metadata"]["name"] == name)
        for name in ("bso-torch", "bso-torch-embedded")
    )

    def differing(one: Any, other: Any, where: str = "") -> Iterator[str]:
        if isinstance(one, dict) and isinstance(other, dict):
            for key in one.keys() | other.keys():
                yield from differing(one.get(key), other.get(key), f"{where}.{key}")
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            for index, pair in enumerate(zip(one, other, strict=True)):
                yield from differing(*pair, f"{where}[{index}]")
        elif one != other:
            yield where

    assert {re.sub(r".*\.(containers\[0\]|volumes)", r"\1", where) for where in differing(ordinary, embedded)} == {
        ".metadata.name",
        "containers[0].env[0].value",
        "containers[0].env[0].valueFrom",
        "volumes[0].emptyDir",
        "volumes[0].persistentVolumeClaim",
    }


def test_the_scripts_that_are_run_exist_and_take_their_arguments() -> None:
    commands = [one["spec"]["trainer"]["command"] for one in of_kind("TrainJob")]
    commands += [one.values[2]["command"] for one in trainings() if "command" in one.values[2]]
    assert len(commands) == 5
    for _, script, *arguments in commands:
        source = (ROOT / "examples" / script).read_text(encoding="utf-8")
        assert all(f'"{one}"' in source for one in arguments if one.startswith("--"))


def test_the_image_holds_those_scripts() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert "COPY --from=examples mnist /training/mnist" in text
    assert "--build-context examples=examples" in text
    builds = re.findall(r"^(?:#   )?(docker build .*)$", text + (FOLDER / "README.md").read_text(), flags=re.MULTILINE)
    assert len(builds) == 2
    assert builds[0] == builds[1]


def test_the_readme_names_every_file() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in FILES} <= set(re.findall(r"\]\(([\w-]+\.yaml)\)", text))
