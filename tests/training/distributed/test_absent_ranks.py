from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from tests.training.distributed.torchrun import launch

RANK_TIMEOUT_S = 15.0


@pytest.mark.parametrize(
    ("where", "name", "called"),
    [
        ("first", "evaluate", "on_evaluate"),
        ("others", "evaluate", "on_evaluate"),
        ("first", "begin", "get_batch_size"),
    ],
    ids=["rank 0 evaluates", "the others evaluate", "rank 0 begins"],
)
def test_a_call_on_some_ranks_only_is_a_clear_error_within_the_deadline(
    tmp_path: Path, where: str, name: str, called: str
) -> None:
    done = launch("absent", tmp_path, where, name, processes=2 if where == "first" else 3)
    assert done.codes == (0,), done.printed

    callers = [0] if where == "first" else [1, 2]
    for rank in callers:
        facts = {key: value for each in done.said[rank] for key, value in each.items()}
        kind, words = facts["error"]
        assert kind == "RankLost"
        assert f"call {called} on every rank" in words
        assert name == "begin" or facts["again"] == facts["error"]  # and at once the next time
    words = [each["error"][1] for rank in callers for each in done.said[rank] if "error" in each]
    assert any(f"within {RANK_TIMEOUT_S:g} s" in said for said in words)
    if name == "evaluate":
        [trial] = done.trials()
        assert (trial.outcome, trial.reports) == (Outcome.INTERRUPTED, 1)
