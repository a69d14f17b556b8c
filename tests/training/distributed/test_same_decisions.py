from pathlib import Path

import pytest

from bso.domain.trial import Outcome
from tests.training.distributed.torchrun import launch


@pytest.mark.parametrize(("processes", "nodes"), [(2, 1), (4, 1), (1, 2)], ids=["two", "four", "two nodes"])
def test_all_ranks_train_the_same_trials_and_stop_together(tmp_path: Path, processes: int, nodes: int) -> None:
    done = launch("loop", tmp_path, processes=processes, nodes=nodes)
    world = processes * nodes
    assert done.codes == (0,) * nodes, done.printed

    trials = done.trials()
    assert done.same("batch_size") == [trial.batch_size for trial in trials]
    assert done.same("number") == [1, 2, 3][: len(trials)]
    assert done.same("outcome") == [trial.outcome.value for trial in trials if trial.outcome]
    assert trials[-1].outcome is Outcome.CONVERGED
    for name in ("reason", "epoch", "finished", "cost", "metric", "why", "ranks"):
        done.same(name)
    assert [sum(shares) for shares in zip(*done.of_all("local"), strict=True)] == done.same("batch_size")
    assert set(done.same("first")) == {"from 0"}
    # 10 J on rank 0, 20 J on rank 1, ... in each window; a pause makes it two windows an epoch
    joules = sum(10.0 * (rank + 1) for rank in range(world))
    assert trials[-1].energy_j == joules * 2 * trials[-1].epoch
    assert (trials[-1].metric, set(done.same("number_of_gpus"))) == (0.95, {world})
    assert set(done.same("max_power_w")) == {70.0 * world}

    assert [path.name for path in tmp_path.glob("state-*")] == ["state-0"]  # the others keep no notes
    logs = [(tmp_path / f"log-{rank}").read_text() for rank in range(world)]
    assert logs[0].count(f"ranks evaluate to different metrics (0.1, 0.101{', ' * (world > 2)}") == 1
    assert not any(logs[1:])
