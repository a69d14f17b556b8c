"""Zeus' own client on four ranks, each of which reports its own figures for every epoch, over `bso serve`."""

from pathlib import Path

from bso.domain.trial import Outcome
from tests.fakes.gpus import FakeGpus, with_cuda
from tests.integration.gateway.conftest import gateway_process
from tests.training.distributed.torchrun import launch


def test_all_ranks_train_and_stop_together(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path / "gpus.json")
    for number in range(4):
        gpus.add(power_w=100.0 + 50.0 * number, counting_since=0.0)
    gateway = gateway_process(tmp_path / "gateway.log", f"sqlite:///{tmp_path / 'bso.sqlite'}")
    try:
        server = gateway.logged("started")[0]["url"]
        done = launch("zeus_ranks", tmp_path, server, processes=4, environ=with_cuda(gpus))
    finally:
        gateway.stop()
    assert done.codes == (0,), done.printed
    assert done.same("batch_size") == [64]
    assert done.same("trial") == [1]
    assert done.same("epochs") == [3]
    assert done.same("finished") == [True]
    [trial] = done.trials("zeus-ranks")
    assert (trial.outcome, trial.epoch) == (Outcome.CONVERGED, 3.0)
