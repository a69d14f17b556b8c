import pytest

from bso_client.energy.nvml import names_mig_slice, visible_positions

UUIDS = ("GPU-8f1a0000", "GPU-8f2b0000", "GPU-90000000", "GPU-a0000000")


@pytest.mark.parametrize(
    ("visible", "positions"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0", (0,)),
        ("3,1", (3, 1)),
        (" 2 , 0 ", (2, 0)),
        ("1,-1,2", (1,)),
        ("0,4,1", (0,)),
        ("1,1", ()),
        ("2gpu", (2,)),
        ("GPU-90000000", (2,)),
        ("GPU-9", (2,)),
        ("GPU-a,GPU-8f1", (3, 0)),
        ("GPU-8f", ()),
        ("GPU-9,GPU-nothing,GPU-a", (2,)),
        ("GPU-9,GPU-90", ()),
        ("GPU-9,1", (2,)),
        ("0,GPU-9", (0,)),
    ],
)
def test_a_process_sees_the_gpus_that_cuda_shows_it(visible: str | None, positions: tuple[int, ...]) -> None:
    assert visible_positions(visible, UUIDS) == positions


@pytest.mark.parametrize(
    ("visible", "is_slice"),
    [(None, False), ("", False), ("0", False), ("GPU-9", False), ("MIG-GPU-9/1/0", True), ("MIG-41b3", True)],
)
def test_slices_are_recognised_by_their_name(visible: str | None, is_slice: bool) -> None:
    assert names_mig_slice(visible) is is_slice
