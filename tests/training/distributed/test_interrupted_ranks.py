from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from tests.training.distributed.launching import launch

WITHIN_S = 25.0  # the launch imports torch; rank_timeout is 30


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_rank_that_waits_for_a_busy_one(tmp_path: Path, name: str) -> None:
    done = launch("interrupted", tmp_path, name)
    assert done.of_all("signalled") == [[True]]
    assert done.took_s < WITHIN_S, done.printed
    assert "no time was left" not in done.printed
    if name == "SIGINT":
        [[took_s]] = done.of_all("took_s")
        assert took_s < 2.0

    [trial] = done.trials()
    assert trial.outcome is Outcome.INTERRUPTED
    assert name != "SIGTERM" or trial.outcome_reason == "SIGTERM"
