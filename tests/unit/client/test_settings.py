from pathlib import Path
from typing import Any

import pytest

from bso.domain.replies import Problem
from bso_client import BatchSizeOptimizer, DistributedNotReady, InvalidSetting, InvalidUrl
from bso_client.errors import Misconfigured, Refused
from bso_client.session import Session
from bso_client.settings import read_settings
from tests.unit.client.doubles import HARDWARE, ReachableOptimizer, ScriptedMonitor, job_spec


def test_arguments_beat_the_environment() -> None:
    environ = {"BSO_URL": "amqp://a", "BSO_STATE_DIR": "/env", "BSO_JOB_ID": "env", "BSO_RECURRENCE_ID": "env"}
    noted = read_settings(environ)
    argued = read_settings(environ, url="sqlite:///x.db", state_dir="/arg", job_id="arg", recurrence_id="arg")

    assert (noted.url, noted.state_dir, noted.job_id, noted.recurrence_id) == ("amqp://a", Path("/env"), "env", "env")
    assert (argued.url, argued.state_dir) == ("sqlite:///x.db", Path("/arg"))
    assert (argued.job_id, argued.recurrence_id) == ("arg", "arg")


def test_without_anything_it_is_a_file_in_the_users_state_directory(tmp_path: Path) -> None:
    assert read_settings({"BSO_STATE_DIR": str(tmp_path)}).resolved_url == f"sqlite:///{tmp_path}/bso.sqlite"
    assert read_settings({}).resolved_state_dir.name == "bso"
    assert read_settings({"BSO_URL": "", "BSO_JOB_ID": "", "RANK": ""}) == read_settings({})


def test_a_relative_path_is_announced_as_what_it_stands_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    announced = read_settings({"BSO_URL": "sqlite:///learnt.db"}).announced_place
    assert announced is not None
    assert f"in {tmp_path}/learnt.db: BSO_URL is relative" in announced
    assert read_settings({"BSO_URL": f"sqlite:///{tmp_path}/learnt.db"}).announced_place is None
    assert read_settings({"BSO_URL": "amqp://host/"}).announced_place is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host", "begins with 'ftp'"),
        ("https://", "names no host"),
        ("host:5672", "begins with no scheme"),
        ("mysql://host/bso", "begins with 'mysql': .* for the workers \\(BSO_DATABASE_URL\\)"),
        ("postgresql+asyncpg://host/bso", "begins with 'postgresql\\+asyncpg': .*BSO_DATABASE_URL"),
        ("bso.sqlite", "begins with no scheme"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("amqp:///vhost", "names no host: "),
        ("amqp://", "names no host: "),
        ("amqp://user:secret@:5672/bso", "names no host: "),
        ("amqp://h:99999", "the port of BSO_URL is not between 1 and 65535: "),
        ("amqp://h:0/", "the port of BSO_URL is not between 1 and 65535: "),
        ("amqp://h:port/", "the port is no number: expected host:5672"),
        ("http:/x", "two slashes follow the scheme"),
        ("amqp://[::g]/", "can be read in more than one way"),
        ("amqp://[:::::]/", "in brackets, and is no IPv6 address"),
        ("amqp://user:a@b@h/", "percent-encode all characters"),
    ],
)
def test_a_wrong_address_says_what_is_expected(url: str, words: str) -> None:
    with pytest.raises(InvalidUrl, match=words) as raised:
        read_settings({"BSO_URL": url})

    assert "amqp(s)://user:password@host" in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({"TORCHELASTIC_RUN_ID": "7f3", "SLURM_JOB_ID": "1"}, "torchrun-7f3"),
        ({"SLURM_JOB_ID": "12"}, "slurm-12"),
        ({"SLURM_JOB_ID": "13", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, "slurm-12_3"),
        ({"PBS_JOBID": "12[3].server"}, "pbs-12-3-.server"),
        ({"LSB_JOBID": "5", "LSB_JOBINDEX": "0"}, "lsf-5"),
        ({"LSB_JOBID": "5", "LSB_JOBINDEX": "2"}, "lsf-5_2"),
        ({"JOB_ID": "5"}, None),
        ({"SGE_ROOT": "/sge", "JOB_ID": "5", "SGE_TASK_ID": "undefined"}, "sge-5"),
        ({"SGE_ROOT": "/sge", "JOB_ID": "5", "SGE_TASK_ID": "4"}, "sge-5_4"),
        ({"FLUX_JOB_ID": "f2k"}, "flux-f2k"),
        ({"AWS_BATCH_JOB_ID": "a" * 300}, "batch-" + "a" * 114),
        ({"BSO_RECURRENCE_ID": "monday", "SLURM_JOB_ID": "12"}, "monday"),
    ],
    ids=str,
)
def test_the_recurrence_is_the_schedulers_run(environ: dict[str, str], expected: str | None) -> None:
    assert read_settings(environ).recurrence_id == expected


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"BSO_JOB_ID": "a/b"}, "BSO_JOB_ID must begin with"),
        ({"BSO_RECURRENCE_ID": "a b"}, "BSO_RECURRENCE_ID must begin with"),
        ({"RANK": "first"}, "RANK must be a whole number"),
        ({"WORLD_SIZE": "-1"}, "WORLD_SIZE must be a whole number"),
    ],
)
def test_a_wrong_setting_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        read_settings(environ)


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch, optimizer: ReachableOptimizer) -> None:
    monkeypatch.setenv("BSO_JOB_ID", "early")
    bso = BatchSizeOptimizer(job_spec(job_id=None), transport=optimizer, monitor=ScriptedMonitor(), hardware=HARDWARE)
    monkeypatch.setenv("BSO_JOB_ID", "late")

    assert bso.job_id == "early"


def test_a_job_without_a_name_is_given_one(optimizer: ReachableOptimizer) -> None:
    spec = job_spec(job_id=None, job_id_prefix="mnist")
    with BatchSizeOptimizer(spec, transport=optimizer, monitor=ScriptedMonitor(), hardware=HARDWARE) as bso:
        bso.get_batch_size()
        given = str(bso.job_id)
        assert given.startswith("mnist-")
        assert len(optimizer.trials(given)) == 1


def test_a_job_without_a_name_is_given_one_in_a_file_too(tmp_path: Path) -> None:
    spec = job_spec(job_id=None, job_id_prefix="mnist")
    with BatchSizeOptimizer(spec, state_dir=tmp_path, hardware=HARDWARE) as bso:
        bso.get_batch_size()
        assert str(bso.job_id).startswith("mnist-")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"WORLD_SIZE": "4"}, "no process group is initialised, and WORLD_SIZE is 4"),
        ({"WORLD_SIZE": "4", "RANK": "2"}, "this is rank 2 of 4, but no process group is initialised"),
        ({"WORLD_SIZE": "4", "RANK": "0"}, "init_process_group"),
    ],
    ids=["unset", "other", "first"],
)
async def test_ranks_get_an_error_that_says_what_to_do(
    environ: dict[str, str], words: str, optimizer: ReachableOptimizer, tmp_path: Path
) -> None:
    environ |= {"BSO_STATE_DIR": str(tmp_path)}
    session = Session(job_spec(), environ, transport=optimizer, hardware=HARDWARE)
    with pytest.raises(DistributedNotReady, match=words):
        await session.begin()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"constant_power": 0.0}, "constant_power must be a positive number"),
        ({"samples_per_epoch": float("nan")}, "samples_per_epoch must be a positive number"),
        ({"rank_timeout": 0.0}, "rank_timeout must be a positive number"),
        ({"unreachable_timeout": -1.0}, "unreachable_timeout must be a number of seconds"),
        ({"constant_power": "70 W"}, "constant_power must be a positive number, got '70 W'"),
        ({"unreachable_timeout": "x"}, "unreachable_timeout must be a number of seconds of 0 or more, got 'x'"),
        ({"unreachable_timeout": None}, "unreachable_timeout must be a number of seconds of 0 or more, got None"),
        ({"monitor": "nvml"}, "monitor must have begin_window"),
        ({"hardware": "A100"}, "hardware must be a bso_client.HardwareKind"),
        ({"on_unreachable": "stop"}, "on_unreachable must be one of continue, raise"),
        ({"on_conflict": "ignore"}, "on_conflict must be one of new_version, raise"),
    ],
    ids=lambda value: "=".join(map(str, *value.items())) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        BatchSizeOptimizer(job_spec(), **options)  # type: ignore[arg-type]  # that is what is tested


def test_an_unknown_argument_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unknown argument urls; known are url"):
        BatchSizeOptimizer(job_spec(), urls="amqp://a")  # type: ignore[call-arg]  # that is what is tested


@pytest.mark.parametrize(
    ("name", "words"),
    [("server_url", r"is url= \(or BSO_URL\) here; known are url"), ("job", "is the first argument here, a JobSpec")],
)
def test_an_argument_of_zeus_is_refused_with_its_name_here(name: str, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        BatchSizeOptimizer(**{name: "http://a"})  # type: ignore[arg-type]  # as Zeus' scripts do
    with pytest.raises(TypeError, match=f"unknown argument {name}; what Zeus calls {name} {words}"):
        BatchSizeOptimizer(job_spec(), **{name: "http://a"})  # type: ignore[arg-type]  # that is what is tested


def test_a_spec_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"expected a bso_client\.JobSpec as the first argument, got dict"):
        BatchSizeOptimizer({"batch_sizes": [1]})  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(InvalidSetting, match="as the first argument, got nothing"):
        BatchSizeOptimizer()


def test_a_spec_of_the_same_name_is_refused_with_its_module() -> None:
    zeus_spec: Any = type("JobSpec", (), {"__module__": "zeus.optimizer.batch_size"})()
    with pytest.raises(
        InvalidSetting, match=r"expected a bso_client\.JobSpec .*, got zeus\.optimizer\.batch_size\.JobSpec"
    ):
        BatchSizeOptimizer(zeus_spec)


def test_a_refusal_says_each_thing_once() -> None:
    fields = {"eta_knob": "is 0.5, got 0.7", "version": "is new"}
    refused = Refused(Problem(type="job_conflict", title="Conflict", detail="eta_knob is 0.5, got 0.7", fields=fields))
    assert str(refused) == "Conflict: eta_knob is 0.5, got 0.7; version is new"


@pytest.mark.parametrize(
    "url", ["sqlite:///:memory:", "amqp://host:99999/", "amqp://host:abc/", "amqp://host:0/", "amqp://u:p@[::1/"]
)
def test_an_address_that_cannot_be_one_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidUrl, match="expected sqlite"):
        read_settings({"BSO_URL": url})


def test_a_state_directory_that_cannot_be_made_is_named_with_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BSO_STATE_DIR", str(tmp_path / "file" / "state"))
    with (
        BatchSizeOptimizer(job_spec(), hardware=HARDWARE, constant_power=1.0) as bso,
        pytest.raises(Misconfigured, match=r"state.* cannot be made, or opened: .*; let BSO_STATE_DIR, or BSO_URL"),
    ):
        bso.get_batch_size()
