"""The MNIST example, on one device and data parallel, on scikit-learn's digits where torchvision is missing."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.integration.client.test_examples import EXAMPLES, run

MNIST = EXAMPLES / "mnist"
TORCHRUN = Path(sys.executable).with_name("torchrun")

without_torchvision = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is there, and may download MNIST"
)


@without_torchvision
def test_without_torchvision_it_says_so_and_trains_on_other_digits(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(MNIST / "train.py"), "--seed", "1")

    assert "training on scikit-learn's digits instead" in printed
    assert re.search(r"trial 1: batch size 128, .* reached the target 0.95", printed)


@without_torchvision
def test_asking_for_mnist_itself_ends_with_a_line_that_says_what_to_install(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(MNIST / "train.py"), "--dataset", "mnist", code=1)

    assert printed.startswith("MNIST cannot be had")
    assert "install torchvision" in printed
    assert len(printed.splitlines()) == 1


def test_two_ranks_train_with_half_of_the_batch_each_in_one_trial(tmp_path: Path) -> None:
    script = str(MNIST / "train_ddp.py")
    command = ("--standalone", "--nproc-per-node", "2", script, "--dataset", "digits", "--seed", "1")
    printed = run(tmp_path, str(TORCHRUN), *command)

    (noted,) = re.findall(r"^trial 1: batch size 128, 64 on each of 2 ranks, .*", printed, re.MULTILINE)
    assert "reached the target" in noted


def test_the_loaders_train_on_one_process_and_on_two(tmp_path: Path) -> None:
    script = (str(MNIST / "train_loader.py"), "--dataset", "digits")
    alone = run(tmp_path / "alone", sys.executable, *script)
    together = run(tmp_path / "together", str(TORCHRUN), "--standalone", "--nproc-per-node", "2", *script)

    for printed in (alone, together):
        assert len(re.findall(r"^trial 1: batch size 128: .* reached the target", printed, re.MULTILINE)) == 1


def test_without_torchrun_the_data_parallel_script_says_how_to_start_it(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(MNIST / "train_ddp.py"), code=1)

    assert printed == "this example is started by torchrun: torchrun --nproc-per-node 2 train_ddp.py\n"
