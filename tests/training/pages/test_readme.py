"""The README's training scripts run as they stand, around models and data that a reader would have."""

import re
from pathlib import Path

import pytest

from tests.fakes.gpus import FakeGpus
from tests.training.pages.reader import run, torchrun

README = Path(__file__).parents[3] / "README.md"
BLOCKS: list[str] = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block(words: str) -> str:
    """The README's one block of Python that holds these words."""
    [found] = [body for body in BLOCKS if words in body]
    return found.replace("0.97", "0.9")  # of the target: fewer epochs


SPECIFIED = block("PowerLimitOptimizer").partition("power = ")[0]
NOTED = "print('trained', trial.batch_size, trial.outcome.value)"


def test_a_training_in_one_process(tmp_path: Path) -> None:
    assert "converged" in run(tmp_path, block("PowerLimitOptimizer"), NOTED)


def test_a_part_of_a_script_is_measured(tmp_path: Path) -> None:
    body = "loader, model = make_loader(64), make_model()\ntrain_one_epoch = lambda model, loader: list(loader)\n"
    gpus = FakeGpus(tmp_path / "gpus.json")
    gpus.run(gpus.add(), power_w=300)
    printed = run(tmp_path, body, block("begin_window"), machine=gpus.environment)
    noted = re.fullmatch(r"([\d.]+) s, (\d+) J \{0: [\d.]+\}\n", printed)
    assert noted is not None, printed
    time_s, energy_j = map(float, noted.groups())
    assert energy_j == pytest.approx(300 * time_s, abs=50)


def test_a_training_under_torchrun(tmp_path: Path) -> None:
    joining, loop = block("DistributedSampler").split("\n", maxsplit=1)
    before, _, after = loop.partition("    ...\n")
    model = """    model = torch.nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.learning_rate)
"""
    epoch = """            for batch in loader:
                train_step(model, optimizer, batch)
            accuracy_over_all_ranks = evaluate(model)
"""
    after = after.replace("            ...\n", epoch)
    printed = run(
        tmp_path, joining.replace("()", "('gloo')"), SPECIFIED, before, model, after, NOTED, launcher=torchrun()
    )
    assert len(set(printed.splitlines())) == 1
    assert printed.count("converged") == 2


HUGGING_FACE = """
from transformers import Trainer, TrainingArguments

class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def forward(self, images, labels):
        logits = self.layers(images)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

make_model = Reader
train_set = [{"images": image, "labels": int(digit)} for image, digit in zip(images[:1400], digits[:1400])]
test_set = [{"images": image, "labels": int(digit)} for image, digit in zip(images[1400:], digits[1400:])]
compute_metrics = lambda noted: {"accuracy": float((noted.predictions.argmax(1) == noted.label_ids).mean())}
"""


def test_a_training_in_a_hugging_face_trainer(tmp_path: Path) -> None:
    specified = SPECIFIED.replace("LearningRate(0.1", "LearningRate(0.005")
    assert "converged" in run(tmp_path, HUGGING_FACE, specified, block("apply_trial"), NOTED)


LIGHTNING = """
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def __init__(self, learning_rate):
        super().__init__()
        self.layers, self.rate = make_model(), learning_rate

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", (self.layers(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)
"""
GIVEN = """
    train_set = train_set

    def val_dataloader(self):
        return DataLoader(test_set, batch_size=256)
"""


@pytest.mark.filterwarnings("default")
def test_a_training_in_lightning(tmp_path: Path) -> None:
    body = block("LightningDataModule")
    first = "class Digits(TrialDataModule, pl.LightningDataModule):\n"
    body = body.replace(first, first + GIVEN)
    assert "converged" in run(tmp_path, LIGHTNING, SPECIFIED, body, NOTED)
