"""Ranks on a real GPU: NCCL as the training's own group, and two ranks that share one GPU."""

from pathlib import Path

import pytest

from bso.domain.hardware import EnergyMethod
from bso.domain.trial import OUT_OF_MEMORY, Outcome, reason_code
from bso_client.energy.nvml import Gpu
from tests.integration.client.scripts import recorded_trials
from tests.integration.client.test_examples import EXAMPLES, run
from tests.training.distributed.torchrun import TORCHRUN, Launched
from tests.training.distributed.torchrun import launch as launch_story

MEASURED = {"BSO_ENERGY": "auto", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


def launch(story: str, folder: Path, *, processes: int, **environ: str) -> Launched:
    done = launch_story(
        str(Path(__file__).parent / "stories" / story), folder, processes=processes, environ=MEASURED | environ
    )
    assert done.codes == (0,), done.printed
    return done


@pytest.mark.usefixtures("torch")
def test_the_data_parallel_example_trains_with_nccl_and_is_measured(tmp_path: Path) -> None:
    script = str(EXAMPLES / "mnist" / "train_ddp.py")
    command = ("--standalone", "--nproc-per-node", "1", script, "--dataset", "digits", "--seed", "1")
    printed = run(tmp_path, str(TORCHRUN), *command, environment=MEASURED)

    assert "trial 1: batch size 128, 128 on each of 1 ranks" in printed
    assert "reached the target" in printed
    [trial] = recorded_trials(tmp_path, "example-digits-parallel")
    assert (trial.outcome, trial.hardware.energy_method) == (Outcome.CONVERGED, EnergyMethod.NVML_COUNTER)
    assert trial.is_energy_complete


def test_exchanges_go_beside_nccl_and_leave_it_alone(tmp_path: Path) -> None:
    done = launch("beside_nccl", tmp_path, processes=1)

    assert done.same("backend") == ["nccl"]
    assert done.same("broadcast") == ["first", "second"]
    assert done.same("gathered") == [[[0, "first"]], [[0, "second"]]]
    assert done.same("reduced") == [1.0, 1.0]
    assert done.same("notes") == [[True, False]]
    assert (done.same("current"), done.same("still_current")) == ([True], [False])


@pytest.mark.parametrize("visible", [None, "0"], ids=["seen by rank 0's index", "seen as each rank's own"])
def test_two_ranks_on_one_gpu_decide_alike_and_count_it_once(tmp_path: Path, gpu: Gpu, visible: str | None) -> None:
    done = launch("one_gpu", tmp_path, processes=2, **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}))

    for name in ("batch_size", "outcome", "epoch", "finished", "cost"):
        done.same(name)
    trials = done.trials()
    assert done.same("batch_size") == [trial.batch_size for trial in trials]
    assert trials[-1].outcome is Outcome.CONVERGED
    assert set(done.same("gpus")) == {1}
    assert set(done.same("max_power_w")) == {gpu.power_limits_w[1]}
    assert set(done.same("model")) == {gpu.name}
    for trial, consumed_j in zip(trials, done.of_all("consumed_j")[0], strict=True):
        assert trial.hardware.energy_method is EnergyMethod.NVML_COUNTER
        assert 0.5 * consumed_j < trial.energy_j <= consumed_j


@pytest.mark.usefixtures("gpu")
def test_one_rank_out_of_memory_lets_all_go_on_with_a_smaller_batch_size(tmp_path: Path) -> None:
    done = launch("memory", tmp_path, processes=2)

    assert done.same("error") == [[]]
    assert done.same("batch_size") == [64, 32]
    assert done.same("outcome") == ["infeasible", "converged"]
    assert reason_code(done.same("why")[0]) == OUT_OF_MEMORY
    assert [trial.outcome for trial in done.trials()] == [Outcome.INFEASIBLE, Outcome.CONVERGED]
