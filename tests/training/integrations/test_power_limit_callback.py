"""A Trainer with a power limit and no job: the optimizer receives steps in rows, without evaluations in between."""

from pathlib import Path

from transformers import Trainer, TrainingArguments

from bso_client.integrations.transformers import PowerLimitCallback
from tests.training.integrations.tiny_task import NUMBER_OF_SAMPLES, Classifier, FirstTokens


class Recorded:
    """A power limit optimizer that records its calls; it breaks at the step ``breaks_at``."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.hooks: list[str] = []
        self.samples: list[float] = []
        self._breaks_at = breaks_at

    def count_samples(self, samples_per_step: float) -> None:
        self.samples.append(samples_per_step)

    def on_epoch_begin(self) -> None:
        self.hooks.append("row")

    def on_epoch_end(self) -> None:
        self.hooks.append("end")

    def on_step_begin(self) -> None:
        self.hooks.append("step")
        if self.hooks.count("step") == self._breaks_at:
            raise RuntimeError("the GPU fell off the bus")

    def on_step_end(self) -> None: ...


def train(folder: Path, received: Recorded) -> int:
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=NUMBER_OF_SAMPLES // 8,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    data = FirstTokens()
    callbacks = [PowerLimitCallback(received)]
    trainer = Trainer(Classifier(), arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks)
    return int(trainer.train().global_step)


def test_steps_come_in_rows_that_evaluations_and_epochs_end(tmp_path: Path) -> None:
    received = Recorded()
    assert train(tmp_path, received) == 8
    rows = " ".join(received.hooks).split("end")
    assert [row.count("step") for row in rows] == [3, 1, 2, 2, 0]
    assert all(row.split()[0] == "row" for row in rows[:-1])


def test_it_gets_the_number_of_samples_of_an_update(tmp_path: Path) -> None:
    received = Recorded()
    train(tmp_path, received)
    assert received.samples == [NUMBER_OF_SAMPLES // 4]


def test_a_power_limit_that_breaks_ends_no_training(tmp_path: Path) -> None:
    received = Recorded(breaks_at=2)
    assert train(tmp_path, received) == 8
    assert received.hooks.count("step") == 2
