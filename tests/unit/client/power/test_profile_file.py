import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bso.domain.commands import PowerMeasurement
from bso_client.power.tuner import ProfileFile
from tests.servers import PATIENCE_S


def profile(power_w: float = 290.0) -> tuple[PowerMeasurement, ...]:
    return tuple(
        PowerMeasurement(power_limit_w=limit_w, average_power_w=power_w, samples_per_s=1 / 3)
        for limit_w in (300.0, 200.0)
    )


def test_profiles_lie_beside_each_other_and_come_back_as_they_were(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path / "new folder" / "profiles.json")
    assert file.read("a") == ()
    file.write("a", profile(1.0))
    file.write("b", profile(2.0))
    file.write("a", profile(3.0))
    assert (file.read("a"), file.read("b"), file.read("c")) == (profile(3.0), profile(2.0), ())
    assert sorted(path.name for path in file.path.parent.iterdir()) == ["profiles.json", "profiles.json.lock"]


def _without_a_digit(data: Any) -> None:
    data["profiles"]["a"]["measurements"][0]["average_power_w"] = 29.0


def _without_checksum(data: Any) -> None:
    del data["profiles"]["a"]["checksum"]


def _with_another_field(data: Any) -> None:
    data["profiles"]["a"]["measurements"][0]["colour"] = 1.0


def _in_another_format(data: Any) -> None:
    data["format"] = 2


@pytest.mark.parametrize("spoil", [_without_a_digit, _without_checksum, _with_another_field, _in_another_format])
def test_a_spoilt_profile_is_a_warning_and_measured_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Any], None]
) -> None:
    file = ProfileFile(tmp_path / "profiles.json")
    file.write("a", profile())
    data = json.loads(file.path.read_text())
    spoil(data)
    file.path.write_text(json.dumps(data))

    assert file.read("a") == ()
    assert "measured anew" in caplog.text
    file.write("a", profile())
    assert file.read("a") == profile()


@pytest.mark.parametrize("content", ["", "{", "[1]", '"text"', '{"format": 1, "profiles": []}', "\0\0\0"])
def test_a_file_of_something_else_is_a_warning_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    file = ProfileFile(tmp_path / "profiles.json")
    file.path.write_text(content)
    assert file.read("a") == ()
    assert "measured anew" in caplog.text
    file.write("a", profile())
    assert file.read("a") == profile()


def test_a_profile_with_impossible_numbers_is_not_believed(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path / "profiles.json")
    file.write("a", profile(-1.0))
    assert file.read("a") == ()


def test_a_place_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    file = ProfileFile(tmp_path / "file" / "profiles.json")
    file.write("a", profile())
    assert file.read("a") == ()
    assert "cannot be kept" in caplog.text


def write_many(path: Path, number: int) -> None:
    for each in range(10):
        ProfileFile(path).write(f"{number}-{each}", profile(number + 1.0))


def test_processes_that_write_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=write_many, args=(path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    for number in range(3):
        for each in range(10):
            assert ProfileFile(path).read(f"{number}-{each}") == profile(number + 1.0)
