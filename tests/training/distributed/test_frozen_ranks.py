from pathlib import Path

import pytest

from tests.training.distributed.torchrun import launch


@pytest.mark.parametrize("where", ["begin", "evaluate"])
def test_a_frozen_rank_0_that_keeps_the_store_hangs_nobody(tmp_path: Path, where: str) -> None:
    done = launch("frozen", tmp_path, where, environ={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert 0 not in done.said, done.printed

    [said] = done.said[1]
    assert "did not answer within" in said["lost"] if where == "begin" else "on_evaluate" in said["lost"]
