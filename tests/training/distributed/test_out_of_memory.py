from pathlib import Path

import pytest

from bso.domain.trial import OUT_OF_MEMORY, Outcome, reason_code
from tests.training.distributed.torchrun import launch


@pytest.mark.parametrize("where", ["all", "one"])
def test_all_ranks_go_on_together_with_a_smaller_batch_size(tmp_path: Path, where: str) -> None:
    done = launch("memory", tmp_path, where)
    assert done.codes == (0,), done.printed

    assert done.same("error") == [[]]
    assert done.same("batch_size") == [64, 32]
    assert done.same("outcome") == ["infeasible", "converged"]
    assert reason_code(done.same("why")[0]) == OUT_OF_MEMORY
    assert done.printed.count("batch size 64 does not fit in memory; going on with a smaller one") == 1
    assert [trial.outcome for trial in done.trials()] == [Outcome.INFEASIBLE, Outcome.CONVERGED]


def test_where_the_others_wait_in_a_collective_it_ends_in_an_error_and_is_still_recorded(tmp_path: Path) -> None:
    done = launch("memory", tmp_path, "stuck")
    assert done.codes == (1,), done.printed

    [[[first, _]], [[second, words]]] = done.of_all("error")
    assert second == "RankLost"
    assert "within 15 s" in words
    assert first == "RuntimeError"  # the training's own group, once rank 1 has given up
    [trial] = done.trials()
    assert (trial.outcome, reason_code(trial.outcome_reason)) == (Outcome.INFEASIBLE, OUT_OF_MEMORY)
    assert "does not fit in memory; this launch ends, and the next one takes a smaller one" in done.printed
    assert "going on with a smaller one" not in done.printed
