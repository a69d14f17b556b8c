"""The script for CIFAR-100, ImageNet and other images, on images made here."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.fakes.gpus import FakeGpus
from tests.integration.client.test_examples import EXAMPLES, run

TRAIN = str(EXAMPLES / "images" / "train.py")
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
QUICK = ("--arch", "resnet8", "--batch-sizes", "32", "--default-batch-size", "32", "--warmup-epochs", "0")


def accuracies(printed: str) -> list[float]:
    return [float(number) for number in re.findall(r"epoch \S+: accuracy (\S+),", printed)]


def test_the_smoke_run_learns_generated_images(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, TRAIN, "--smoke")

    reached = accuracies(printed)
    assert reached[0] < 0.6
    assert reached[-1] >= 0.9
    assert "reached the target 0.9" in printed


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("shufflenet", 2_278_604)]
)
def test_networks_have_the_size_of_their_namesakes(name: str, parameters: int) -> None:
    import torch

    make_model = runpy.run_path(str(EXAMPLES / "images" / "models.py"))["make_model"]
    network = make_model(name, classes=1000, image_size=224)

    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert network.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def test_accumulated_mixed_precision_training_reaches_the_same_target(tmp_path: Path) -> None:
    mixed = ("--amp", "bfloat16", "--max-micro-batch-size", "24")
    printed = run(tmp_path, sys.executable, TRAIN, "--generated", "800", *mixed)

    assert "trial 1: batch size 64, 4 x 16 on each rank" in printed
    assert "reached the target" in printed


def test_ranks_under_torchrun_train_one_trial(tmp_path: Path) -> None:
    arguments = ("--standalone", "--nproc-per-node", "2", TRAIN, "--generated", "800", "--max-micro-batch-size", "16")
    printed = run(tmp_path, TORCHRUN, *arguments)

    assert printed.count("trial 1: batch size 64, 2 x 16 on each rank") == 1
    assert "reached the target" in printed


def test_a_killed_training_goes_on_from_its_checkpoint_in_the_same_trial(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    command = (sys.executable, TRAIN, "--smoke", "--target", "0.95", "--checkpoint", str(checkpoint), *QUICK)
    environ = os.environ | {"BSO_STATE_DIR": str(tmp_path / "state"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        seen = [killed.stdout.readline(), killed.stdout.readline()]  # the first epoch is saved before the second
        killed.send_signal(signal.SIGTERM)
    assert accuracies("".join(seen)) == sorted(accuracies("".join(seen)))
    assert checkpoint.exists()
    printed = run(tmp_path, *command)

    assert "epoch 1:" not in printed
    assert re.search(r"trial 1: batch size 32, .* reached the target", printed)
    assert not checkpoint.exists()


def test_power_limits_are_profiled_meanwhile_and_restored(tmp_path: Path) -> None:
    gpus = FakeGpus(tmp_path / "gpus.json")
    gpus.run(gpus.add(uuid=f"GPU-{uuid.uuid4()}"), power_w=300.0)
    search = ("--power-limit", "cost", "--power-limit-step", "250", "--target", "0.98")
    small = ("--generated", "1600", "--batch-sizes", "16", "--default-batch-size", "16")
    environment = gpus.environment | {"BSO_ENERGY": "auto"}
    printed = run(tmp_path, sys.executable, TRAIN, *small, *search, environment=environment)
    bso = str(Path(sys.executable).with_name("bso"))
    (profiled,) = run(tmp_path, bso, "events", "history", "--type", "power_profiled", "--json").splitlines()

    assert "reached the target" in printed
    measurements = json.loads(profiled)["payload"]["measurements"]
    assert [one["power_limit_w"] for one in measurements] == [700.0, 450.0, 200.0]
    assert gpus.device(0)["limit_w"] == 700.0


def test_cifar_100_is_read_from_its_binary_version(tmp_path: Path) -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 400), ("test", 100)):
        labels = torch.randint(4, (count, 1), generator=generator, dtype=torch.uint8)
        pixels = torch.randint(60, (count, 3072), generator=generator, dtype=torch.uint8) + labels * 40
        content = torch.cat((torch.zeros_like(labels), labels, pixels), dim=1)
        (tmp_path / f"{name}.bin").write_bytes(content.numpy().tobytes())
    printed = run(tmp_path, sys.executable, TRAIN, "--cifar100", str(tmp_path), *QUICK, "--max-epochs", "8")

    assert "reached the target 0.6" in printed


def test_a_folder_of_image_files_is_read_by_worker_processes(tmp_path: Path) -> None:
    picture = pytest.importorskip("PIL.Image")
    for part, count in (("train", 40), ("val", 10)):
        for name, colour in (("blue", (20, 20, 200)), ("red", (200, 20, 20))):
            (tmp_path / "images" / part / name).mkdir(parents=True)
            for number in range(count):
                drawn = picture.new("RGB", (50 + number, 70), tuple(value + number for value in colour))
                drawn.save(tmp_path / "images" / part / name / f"{number}.jpg")
    sizes = ("--image-size", "32", "--workers", "1", "--batch-sizes", "8", "--default-batch-size", "8")
    printed = run(tmp_path, sys.executable, TRAIN, "--folder", str(tmp_path / "images"), *QUICK, *sizes)

    assert "reached the target 0.65" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cifar100", "nix"), "there is no nix/train.bin: unpack https://"),
        (("--folder", "nix"), "nix/train holds no images: expected a folder for each class"),
        (("--smoke", "--arch", "nix"), "--arch nix: expected one of resnet8, resnet20"),
        (("--smoke", "--arch", "torchvision:nix"), "--arch torchvision:nix: "),
    ],
)
def test_what_is_missing_is_printed_in_a_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    printed = run(tmp_path, sys.executable, TRAIN, *arguments, code=1)

    assert said in printed
    assert len(printed.splitlines()) == 1
