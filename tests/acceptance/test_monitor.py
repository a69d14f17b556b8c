"""``bso monitor``: what this machine draws, and what a command has taken."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.acceptance.conftest import Command
from tests.fakes.gpus import FakeGpus
from tests.fakes.powercap import FakePowercap

WAIT = """
import signal, sys
def stop(number, frame):
    print("received", number, flush=True)
    sys.exit(9)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, stop)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def gpus(bso: Command, tmp_path: Path) -> FakeGpus:
    """Two GPUs at work."""
    machine = FakeGpus(tmp_path / "gpus.json")
    machine.run(machine.add(name="NVIDIA L4"), power_w=60.0)
    machine.run(machine.add(name="Tesla T4"), power_w=40.0)
    bso.environment |= machine.environment
    return machine


@pytest.fixture
def powercap(bso: Command, tmp_path: Path) -> FakePowercap:
    """A folder for processors, without any yet."""
    folder = FakePowercap(tmp_path / "powercap")
    bso.environment |= {"BSO_POWERCAP_DIR": str(folder.root), "BSO_FAKE_NVML": "", "CUDA_VISIBLE_DEVICES": ""}
    return folder


def test_each_look_is_a_line_for_programs(bso: Command, powercap: FakePowercap, gpus: FakeGpus) -> None:
    powercap.add_package()
    powercap.add_memory()
    del bso.environment["CUDA_VISIBLE_DEVICES"]
    first, second = bso.lines("monitor", "--json", "--count", 2, "--interval", 0.3)

    assert [each["device"] for each in first["devices"]] == ["GPU 0", "GPU 1", "CPU 0", "DRAM 0"]
    assert [each["name"] for each in first["devices"][:2]] == ["NVIDIA L4", "Tesla T4"]
    for look in (first, second):
        first_gpu, second_gpu = look["devices"][:2]
        assert look["total_power_w"] == pytest.approx(first_gpu["power_w"] + second_gpu["power_w"])
        assert look["total_energy_j"] == pytest.approx(first_gpu["energy_j"] + second_gpu["energy_j"])
    counted = first["devices"][0]
    assert counted["power_w"] == pytest.approx(counted["energy_j"] / first["time_s"])
    assert second["devices"][0]["energy_j"] > counted["energy_j"] > 0
    assert second["time_s"] > first["time_s"] >= 0.3
    assert first["unreadable"] == []


def test_people_read_a_table(bso: Command, powercap: FakePowercap, gpus: FakeGpus) -> None:
    del bso.environment["CUDA_VISIBLE_DEVICES"]
    shown = bso.ok("monitor", "-n", 1, "-i", 0.2)

    for words in ("NVIDIA L4", "Tesla T4", "power", "energy", "total", "not measured: CPU: no energy counters"):
        assert words in shown


def test_cuda_visible_devices_chooses(bso: Command, powercap: FakePowercap, gpus: FakeGpus) -> None:
    [look] = bso.lines("monitor", "--json", "-n", 1, "-i", 0.1, CUDA_VISIBLE_DEVICES="1")

    assert [(each["device"], each["name"]) for each in look["devices"]] == [("GPU 0", "Tesla T4")]


def test_what_cannot_be_measured_stands_beside_what_can(bso: Command, powercap: FakePowercap, gpus: FakeGpus) -> None:
    gpus.change(0, mig_mode=1)
    powercap.add_package()
    del bso.environment["CUDA_VISIBLE_DEVICES"]
    [look] = bso.lines("monitor", "--json", "-n", 1, "-i", 0.1)

    assert [each["device"] for each in look["devices"]] == ["CPU 0"]
    assert "partitioned (MIG)" in look["unreadable"][0]["why"]


def test_a_gpu_without_an_energy_counter_stands_beside_one_that_has_it(
    bso: Command, powercap: FakePowercap, gpus: FakeGpus
) -> None:
    gpus.change(1, name="Tesla P4", energy_j=None)
    [look] = bso.lines("monitor", "--json", "-n", 1, "-i", 0.1, CUDA_VISIBLE_DEVICES="0,1")

    assert [each["name"] for each in look["devices"]] == ["NVIDIA L4"]
    assert "Tesla P4" in look["unreadable"][0]["why"]
    assert "pass a monitor of your own" in look["unreadable"][0]["advice"]
    assert "not measured: GPU: GPU 1 (Tesla P4)" in bso.ok("doctor", BSO_ENERGY="auto", CUDA_VISIBLE_DEVICES="0,1")


def test_live_ends_well_with_ctrl_c(bso: Command, powercap: FakePowercap) -> None:
    powercap.add_package()
    process = bso.start("monitor", "--json", "-i", 0.1)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)

    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "")


def test_without_a_meter_it_says_what_it_looked_for(bso: Command, powercap: FakePowercap) -> None:
    said = bso.refused("monitor")

    assert "no energy meter is readable here. Looked for: GPU:" in said
    assert f"CPU: no energy counters (RAPL) in {powercap.root}" in said


def test_a_command_is_measured_and_its_output_left_alone(bso: Command, powercap: FakePowercap) -> None:
    powercap.add_package(energy_j=10.0)
    counter = powercap.root / "intel-rapl:0" / "energy_uj"
    done = bso("monitor", "--", "sh", "-c", f"echo 13500000 > {counter}; echo out; echo err >&2; exit 5")

    assert (done.returncode, done.stdout) == (5, "out\n")
    assert done.stderr.startswith("err\n")
    assert "energy 3.50 J" in done.stderr
    assert "CPU 0" in done.stderr


def test_a_measured_command_as_json_has_standard_output_for_itself(bso: Command, powercap: FakePowercap) -> None:
    powercap.add_package(energy_j=10.0)
    counter = powercap.root / "intel-rapl:0" / "energy_uj"
    done = bso("monitor", "--json", "--", "sh", "-c", f"echo 13500000 > {counter}; echo out; exit 5")
    noted = json.loads(done.stdout)

    assert (done.returncode, noted["exit_code"], done.stderr) == (5, 5, "out\n")
    assert noted["total_energy_j"] == 3.5
    assert noted["devices"][0]["energy_j"] == 3.5


def test_without_a_meter_a_command_runs_all_the_same(bso: Command, powercap: FakePowercap) -> None:
    done = bso("monitor", "--", "sh", "-c", "echo out; exit 3")

    assert (done.returncode, done.stdout) == (3, "out\n")
    assert "energy unknown" in done.stderr
    assert "not measured: CPU: no energy counters" in done.stderr


def test_a_meter_that_fails_meanwhile_leaves_the_energy_unknown(bso: Command, powercap: FakePowercap) -> None:
    powercap.add_package()
    done = bso("monitor", "--json", "--", "rm", powercap.root / "intel-rapl:0" / "energy_uj")
    noted = json.loads(done.stdout)

    assert done.returncode == 0
    assert (noted["total_energy_j"], noted["devices"][0]["energy_j"]) == (None, None)


def test_a_killed_command_exits_as_a_shell_says(bso: Command, powercap: FakePowercap) -> None:
    assert bso("monitor", "--", "sh", "-c", "kill -9 $$").returncode == 137


def test_a_command_that_is_not_there_is_a_sentence(bso: Command, powercap: FakePowercap) -> None:
    assert "there is no program 'no-such-program'" in bso.refused("monitor", "--", "no-such-program")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on(bso: Command, powercap: FakePowercap, number: signal.Signals) -> None:
    process = bso.start("monitor", "--", sys.executable, "-c", WAIT)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)

    out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (9, f"received {int(number)}\n")
    assert "energy unknown" in said


def test_ctrl_c_in_a_terminal_reaches_the_command_once(bso: Command, powercap: FakePowercap, tmp_path: Path) -> None:
    received = tmp_path / "received"
    script = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # it waits until it is asked for
print("ready", flush=True)
signal.sigwait([signal.SIGINT])
again = signal.sigtimedwait([signal.SIGINT], 0.5)
open({str(received)!r}, "w").write("once" if again is None else "twice")
"""
    process, typed = bso.start_in_terminal("monitor", "--", sys.executable, "-c", script)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(typed, 1024)
    os.write(typed, b"\x03")
    while b"energy unknown" not in shown:
        shown += os.read(typed, 1024)

    assert process.wait(60) == 0
    assert received.read_text() == "once"


def test_the_doctor_says_which_meters_are_readable(bso: Command, powercap: FakePowercap, gpus: FakeGpus) -> None:
    powercap.add_package()
    del bso.environment["CUDA_VISIBLE_DEVICES"]
    shown = bso.ok("doctor", BSO_ENERGY="auto")

    assert "GPUs are measured: 0: NVIDIA L4 (energy counter), 1: Tesla T4 (energy counter)" in shown
    assert "processors and memory are measured (RAPL): package-0" in shown
    assert "assumed" not in shown


def test_the_doctor_says_why_meters_are_not_readable(bso: Command, powercap: FakePowercap) -> None:
    shown = bso.ok("doctor", BSO_ENERGY="auto")

    assert "not measured: GPU:" in shown
    assert f"not measured: CPU: no energy counters (RAPL) in {powercap.root}" in shown
    assert "energy is assumed, constant power times time" in shown
    for remedy in ("monitor=", "constant_power=", "BSO_ENERGY=assumed"):
        assert remedy in shown
    assert "BSO_ENERGY says so" in bso.ok("doctor", BSO_ENERGY="assumed")
    assert "BSO_ENERGY must be one of auto, assumed" in bso("doctor", BSO_ENERGY="none").stdout
