"""What trainings keep on disk is their owner's alone, whatever the umask; what was there before stays as it was."""

import asyncio
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bso.domain.commands import DescribeJob, Request
from bso_client.delivery.journal import Destination, Journal, Kept
from bso_client.power.tuner import ProfileFile
from bso_migrations import upgrade
from tests.integration.client.scripts import Script

TRAINING = """
if __name__ == "__main__":
    for trial in bso.trials():
        with trial:
            while not trial.finished:
                trial.on_evaluate(1.0)
            print(*os.listdir(os.environ["BSO_STATE_DIR"]))
"""
INTERRUPTED = """
if __name__ == "__main__":
    bso.get_batch_size()
    bso.on_train_begin()
    print("ready", flush=True)
    signal.pause()
"""


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of this test and of the programs that it starts."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """The modes of a folder and of all that is in it, by path."""
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):o}" for path in found}


def assert_private(folder: Path) -> None:
    found = modes(folder)
    assert {mode for name, mode in found.items() if (folder / name).is_dir()} == {"700"}, found
    assert {mode for name, mode in found.items() if (folder / name).is_file()} == {"600"}, found


def test_the_state_directory_and_all_that_a_training_makes_in_it_is_its_owners(tmp_path: Path, umask: int) -> None:
    done = Script(tmp_path, TRAINING).run()
    assert done.returncode == 0, done.stderr
    assert {"bso.sqlite", "bso.sqlite-wal", "jobs"} <= set(done.stdout.split())  # while it ran
    assert_private(tmp_path / "state")


def test_so_is_what_a_training_has_open(tmp_path: Path, umask: int) -> None:
    with Script(tmp_path, INTERRUPTED).running():
        names = set(modes(tmp_path / "state"))
        assert_private(tmp_path / "state")
    assert {"bso.sqlite", "bso.sqlite-wal", "bso.sqlite-shm"} <= names
    assert any(name.startswith("bso.sqlite-trials/") and name.endswith(".lock") for name in names)


def test_so_is_the_journal(tmp_path: Path, umask: int) -> None:
    journal = Journal(tmp_path / "state", Destination(address="amqp://broker:5672/jobs", login="me"), "job")
    kept = [Kept(training="t", request=Request(command_id=f"{i}", job_id="job", command=DescribeJob())) for i in (1, 2)]
    for each in kept:
        journal.keep(each)
    journal.set_aside(kept[0], "refused")
    found = modes(tmp_path / "state")
    assert {Path(name).name for name in found} >= {"set-aside.jsonl", "00000001.jsonl", "00000001.lock"}
    assert_private(tmp_path / "state")
    journal.close()


def test_so_are_power_profiles(tmp_path: Path, umask: int) -> None:
    ProfileFile(tmp_path / "state/power-profiles.json").write("key", [])
    assert {"power-profiles.json", "power-profiles.json.lock"} <= set(modes(tmp_path / "state"))
    assert_private(tmp_path / "state")


def test_a_file_in_a_folder_of_the_users_is_its_owners_and_the_folder_is_left_alone(tmp_path: Path, umask: int) -> None:
    tmp_path.chmod(0o755)
    asyncio.run(upgrade(f"sqlite:///{tmp_path}/bso.sqlite"))
    asyncio.run(upgrade(f"sqlite:///{tmp_path}/new/deep/bso.sqlite"))
    found = modes(tmp_path)
    assert (found["."], found["bso.sqlite"]) == ("755", "600")
    assert_private(tmp_path / "new")


def test_what_others_were_let_into_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "bso.sqlite"
    asyncio.run(upgrade(f"sqlite:///{path}"))
    path.chmod(0o660)
    asyncio.run(upgrade(f"sqlite:///{path}"))
    assert modes(tmp_path)["bso.sqlite"] == "660"


async def test_a_file_behind_a_link_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    disk, link = tmp_path / "disk.sqlite", tmp_path / "bso.sqlite"
    link.symlink_to(disk)
    await upgrade(f"sqlite:///{link}")
    assert stat.S_IMODE(disk.stat().st_mode) == 0o600


NOBODY = 65534
WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""Runs a command of root's that may not read and write whatever it likes."""
needs_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can give files away, and setpriv be strict"
)


def examined(state: Path) -> str:
    """What `bso doctor` says of a state directory."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
    environ |= {"BSO_STATE_DIR": str(state), "BSO_ENERGY": "assumed", "COLUMNS": "1000"}
    command = [*WITHOUT_PRIVILEGES, sys.executable, "-m", "bso_cli", "doctor"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout


@needs_setpriv
@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_state_directory_that_this_user_cannot_write_is_named_with_its_owner(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=mode)
    done = Script(tmp_path, TRAINING).run(inside=WITHOUT_PRIVILEGES)
    words = (
        f"no permission to read and write {state}: it belongs to root (mode {mode:o}), and this process runs as root"
    )
    assert f"StoreUnusable: {words}; let BSO_STATE_DIR, or BSO_URL where that is set, name another place" in done.stderr
    assert "PermissionError:" not in done.stderr
    assert f"embedded optimizer: {words}" in examined(state)


@needs_setpriv
def test_another_users_file_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert Script(tmp_path, TRAINING).run().returncode == 0
    path = state / "bso.sqlite"
    os.chown(path, NOBODY, NOBODY)
    done = Script(tmp_path, TRAINING).run(inside=WITHOUT_PRIVILEGES)
    owner = pwd.getpwuid(NOBODY).pw_name
    words = f"no permission to read and write {path}: it belongs to {owner} (mode 600), and this process runs as root"
    assert words in done.stderr
    assert "remove" not in done.stderr
    assert f"embedded optimizer: {words}" in examined(state)
