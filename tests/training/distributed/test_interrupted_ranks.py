from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from tests.training.distributed.torchrun import launch


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_rank_that_waits_for_a_busy_one(tmp_path: Path, name: str) -> None:
    done = launch("interrupted", tmp_path, name)
    assert done.of_all("signalled") == [[True]]
    assert done.codes == (1,), done.printed  # long before its rank_timeout was over
    assert "no time was left" not in done.printed

    [trial] = done.trials()
    assert trial.outcome is Outcome.INTERRUPTED
    assert name != "SIGTERM" or trial.outcome_reason == "SIGTERM"
