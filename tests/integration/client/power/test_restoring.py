"""Training scripts as processes of their own: however they end, the GPU has its power limit back."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bso_client.power.guard import LimitRecord, LockFile
from bso_client.processes import boot_id
from tests.fakes.gpus import FakeGpus
from tests.integration.client.power.conftest import MakePowerLimit
from tests.servers.waiting import eventually

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup, whose children ignore it
from bso_client import *

power_limit = PowerLimitOptimizer(warmup_steps=0, profile_steps=1, step_w=100, lock_folder=sys.argv[1])
for step in power_limit.steps(range(10)):
    if step == 2:  # 600 W is set
        print("ready", flush=True)
"""
WAIT = "signal.pause()"


@pytest.fixture(autouse=True)
def _gpus_at_work(gpus: FakeGpus) -> None:
    for index in range(2):
        gpus.add(limit_w=650.0, default_limit_w=600.0)
        gpus.run(index, power_w=300.0)


@contextmanager
def training(folder: Path, what_next: str = WAIT, *launcher: str) -> Iterator[subprocess.Popen[str]]:
    """A script in a process group of its own, from the moment at which it has set another limit."""
    path = folder / "training_script.py"
    path.write_text(SCRIPT + textwrap.indent(textwrap.dedent(what_next), " " * 8))
    command = [*launcher, sys.executable, str(path), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def limits_w(gpus: FakeGpus) -> list[float]:
    return [gpus.device(index)["limit_w"] for index in range(2)]


def only_child_of(process: subprocess.Popen[str]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    assert len(children) == 1
    return int(children[0])


def is_dead(child: int) -> bool:
    """Whether a process has ended; its parent, which does not look, keeps it as a zombie."""
    return Path(f"/proc/{child}/stat").read_text(encoding="ascii").split()[2] == "Z"


@pytest.mark.parametrize(
    ("last_words", "code"),
    [
        ("break", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('no more data')", 1),
        ("power_limit.close(); os._exit(4)", 4),
        ("del power_limit; os._exit(5)", 5),
    ],
    ids=["end", "exit", "exception", "close", "forgotten"],
)
def test_the_limits_are_back_when_a_script_has_ended(
    gpus: FakeGpus, tmp_path: Path, last_words: str, code: int
) -> None:
    with training(tmp_path, last_words) as process:
        assert process.wait(60) == code
    eventually(lambda: limits_w(gpus) == [650.0, 650.0])
    assert (0, 600.0) in gpus.limits_set


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGABRT])
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "group"])
def test_the_limits_are_back_after_a_signal(
    gpus: FakeGpus, tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    with training(tmp_path) as process:
        assert limits_w(gpus) == [600.0, 600.0]
        send(process.pid, number)
        assert process.wait(60) == -number
        eventually(lambda: limits_w(gpus) == [650.0, 650.0])


def can_unshare() -> bool:
    """Whether a process may be made the first one of its own, as that of a container is."""
    command = ["unshare", "--pid", "--fork", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, check=False).returncode == 0


@pytest.mark.skipif(not can_unshare(), reason="this user may not make namespaces of processes")
@pytest.mark.parametrize(
    ("first_words", "code"), [("", 143), ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(8))", 8)]
)
def test_sigterm_to_the_first_process_of_a_container_restores_the_limits(
    gpus: FakeGpus, tmp_path: Path, first_words: str, code: int
) -> None:
    waiting = f"""
    {first_words}
    assert os.getpid() == 1
    print("waiting", flush=True)
    signal.pause()
    """
    with training(tmp_path, waiting, "unshare", "--pid", "--fork", "--kill-child") as unshare:
        assert unshare.stdout is not None
        assert unshare.stdout.readline().strip() == "waiting"
        os.kill(only_child_of(unshare), signal.SIGTERM)  # its only child: the script
        assert unshare.wait(60) == code
        assert limits_w(gpus) == [650.0, 650.0]  # its end has killed the guard: there is nobody who still would


def test_a_process_that_ends_without_a_word_leaves_the_limits_to_its_guard(gpus: FakeGpus, tmp_path: Path) -> None:
    with training(tmp_path, "os._exit(6)") as process:
        assert process.wait(60) == 6
        eventually(lambda: limits_w(gpus) == [650.0, 650.0])


def test_a_killed_training_whose_children_live_on_has_its_limits_restored(gpus: FakeGpus, tmp_path: Path) -> None:
    forking = """
    if os.fork() == 0:
        signal.pause()
    print("forked", flush=True)
    signal.pause()
    """
    with training(tmp_path, forking) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "forked"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        eventually(lambda: limits_w(gpus) == [650.0, 650.0])


def test_a_forked_child_leaves_the_limits_to_its_parent(gpus: FakeGpus, tmp_path: Path) -> None:
    forking = """
    pid = os.fork()
    if pid == 0:
        list(power_limit.steps(range(100)))
        power_limit.close()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print("waited", flush=True)
    signal.pause()
    """
    with training(tmp_path, forking) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "waited"
        assert limits_w(gpus) == [600.0, 600.0]


def test_when_a_guard_is_killed_with_its_training_the_next_one_restores_what_it_left(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, tmp_path: Path
) -> None:
    with training(tmp_path) as process:
        os.kill(process.pid, signal.SIGSTOP)  # it must not see its guard die
        guard = only_child_of(process)
        os.kill(guard, signal.SIGKILL)
        eventually(lambda: is_dead(guard))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    assert limits_w(gpus) == [600.0, 600.0]

    power_limit = make_power_limit()
    list(power_limit.steps(range(2)))
    assert limits_w(gpus) == [700.0, 700.0]  # not a cap that somebody has set
    power_limit.close()
    assert limits_w(gpus) == [650.0, 650.0]


def test_when_a_guard_is_killed_another_takes_its_place(gpus: FakeGpus, tmp_path: Path) -> None:
    go_on = """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    print("listening", flush=True)
    signal.sigwait([signal.SIGUSR1])
    power_limit.on_epoch_end()
    power_limit.on_epoch_begin()
    print("guarded", flush=True)
    signal.pause()
    """
    with training(tmp_path, go_on) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "listening"
        first = only_child_of(process)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: is_dead(first))
        os.kill(process.pid, signal.SIGUSR1)
        assert process.stdout.readline().strip() == "guarded"
        assert only_child_of(process) != first
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        eventually(lambda: limits_w(gpus) == [650.0, 650.0])


@pytest.mark.parametrize(
    "left",
    [(600.0, boot_id(), 650.0), (500.0, boot_id(), 500.0), (600.0, "an earlier boot", 600.0)],
    ids=["ours", "set by somebody else", "before a reboot"],
)
def test_only_a_limit_that_was_left_behind_is_taken_for_one(
    gpus: FakeGpus,
    make_power_limit: MakePowerLimit,
    tmp_path: Path,
    left: tuple[float, str, float],
) -> None:
    current_w, boot, restored_w = left
    for index in range(2):
        gpus.change(index, limit_w=current_w)
        lock = LockFile(tmp_path, gpus.device(index)["uuid"])
        lock.write(LimitRecord(original_w=650.0, set_w=(700.0, 600.0), boot_id=boot), pid=1)
        lock.close()
    power_limit = make_power_limit()
    list(power_limit.steps(range(3)))
    power_limit.close()
    assert limits_w(gpus) == [restored_w, restored_w]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"original_w": "a lot"}', json.dumps({"original_w": 1, "set_w": 2})]
)
def test_a_lock_file_that_says_nothing_useful_is_written_anew(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, tmp_path: Path, content: str
) -> None:
    for index in range(2):
        (tmp_path / f"bso-power-limit-{gpus.device(index)['uuid']}.lock").write_text(content)
    power_limit = make_power_limit()
    list(power_limit.steps(range(2)))
    assert limits_w(gpus) == [700.0, 700.0]
    power_limit.close()
    assert limits_w(gpus) == [650.0, 650.0]


def test_without_a_place_for_locks_no_limit_is_touched(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    list(make_power_limit(lock_folder=tmp_path / "nowhere").steps(range(5)))
    assert gpus.limits_set == []
    assert "no lock can be kept in" in caplog.text


def test_a_limit_that_cannot_be_restored_is_logged_and_remembered(
    gpus: FakeGpus, make_power_limit: MakePowerLimit, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    power_limit = make_power_limit()
    list(power_limit.steps(range(2)))
    gpus.fail("nvmlDeviceSetPowerManagementLimit", 999, index=0)
    power_limit.close()
    assert limits_w(gpus) == [700.0, 650.0]
    assert "bso: a power limit could not be restored: GPU 0" in capfd.readouterr().err

    gpus.change(0, errors={})
    power_limit = make_power_limit()
    list(power_limit.steps(range(2)))
    power_limit.close()
    assert limits_w(gpus) == [650.0, 650.0]
