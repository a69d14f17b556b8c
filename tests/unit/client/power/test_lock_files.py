import os
from pathlib import Path

import pytest

from bso_client.power.guard import LimitRecord, LimitTaken, LockFile
from bso_client.power.limits import default_lock_folder

RECORD = LimitRecord(original_w=300.0, set_w=(200.0, 100.0), boot_id="boot")


def test_a_lock_has_one_holder_at_a_time_and_says_who_it_is(tmp_path: Path) -> None:
    lock = LockFile(tmp_path, "GPU-1")
    lock.write(RECORD, pid=4711)
    with pytest.raises(LimitTaken, match="process 4711"):
        LockFile(tmp_path, "GPU-1")
    LockFile(tmp_path, "GPU-2").close()
    lock.close()
    LockFile(tmp_path, "GPU-1").close()


def test_what_a_holder_left_behind_is_found_by_the_next_unless_it_is_forgotten(tmp_path: Path) -> None:
    lock = LockFile(tmp_path, "GPU-1")
    assert lock.left_behind() is None
    lock.write(LimitRecord(original_w=300.0, set_w=(250.0, 200.0, 150.0, 100.0), boot_id="longer"), pid=1)
    lock.write(RECORD, pid=1)
    lock.close()

    lock = LockFile(tmp_path, "GPU-1")
    assert lock.left_behind() == RECORD
    lock.forget()
    assert lock.left_behind() is None
    lock.close()


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "bso-power-limit-GPU-1.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        LockFile(tmp_path, "GPU-1")
    assert not (tmp_path / "precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_record_of_a_stranger_is_not_believed(tmp_path: Path) -> None:
    lock = LockFile(tmp_path, "GPU-1")
    lock.write(RECORD, pid=1)
    os.chown(tmp_path / "bso-power-limit-GPU-1.lock", 12345, 12345)
    assert lock.left_behind() is None
    lock.close()


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_record_that_others_may_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    lock = LockFile(tmp_path, "GPU-1")
    lock.write(RECORD, pid=1)
    (tmp_path / "bso-power-limit-GPU-1.lock").chmod(mode)
    assert lock.left_behind() is None
    lock.close()


@pytest.mark.parametrize(
    ("current_w", "boot_id", "explains"),
    [(200.0, "boot", True), (100.3, "boot", True), (300.0, "boot", False), (200.0, "next", False)],
)
def test_a_record_explains_the_limits_that_its_holder_has_set(current_w: float, boot_id: str, explains: bool) -> None:
    assert RECORD.explains(current_w, boot_id) is explains


def test_the_folder_for_locks_can_be_written() -> None:
    assert os.access(default_lock_folder(), os.W_OK)
