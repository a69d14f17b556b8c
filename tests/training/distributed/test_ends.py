from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from tests.training.distributed.torchrun import launch


@pytest.mark.parametrize("attempt", range(3))
def test_ranks_whose_optimizer_nobody_holds_end_in_order(tmp_path: Path, attempt: int) -> None:
    """Its group is closed in a thread of its own, which must not go on while the interpreter ends."""
    done = launch("unnamed", tmp_path)
    assert done.codes == (0,), done.printed
    assert done.same("outcome") == ["converged"]
    assert [trial.outcome for trial in done.trials()] == [Outcome.CONVERGED]
