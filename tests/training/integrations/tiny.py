"""Trainers of Hugging Face for the small task, with evaluations that a test chooses: each training takes a second."""

from pathlib import Path
from typing import Any

from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from tests.training.integrations.tiny_task import Classifier, FirstTokens, for_ever


def tiny_bert() -> Any:
    """A BERT of 5000 parameters, from scratch."""
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=20,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
        )
    )


class Accuracies:
    """compute_metrics that returns the accuracies it is given, one per evaluation; the last one for ever."""

    def __init__(self, *accuracies: float) -> None:
        self._told = for_ever(accuracies)

    def __call__(self, predictions: Any) -> dict[str, float]:
        return {"accuracy": next(self._told)}


def accuracy(predictions: Any) -> dict[str, float]:
    """The accuracy that is."""
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def arguments(folder: Path, **chosen: Any) -> TrainingArguments:
    """Arguments of a training on the CPU that says little."""
    settled: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "num_train_epochs": 5,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_strategy": "no",
        "learning_rate": 1e-2,
        "dataloader_pin_memory": False,
        "per_device_eval_batch_size": 64,
    }
    return TrainingArguments(**settled | chosen)


def trainer_for(args: TrainingArguments, *callbacks: Any, **chosen: Any) -> Any:
    """A Trainer of the small task."""
    settled: dict[str, Any] = {
        "model": Classifier(),
        "train_dataset": FirstTokens(),
        "eval_dataset": FirstTokens(16, seed=1),
        "compute_metrics": Accuracies(0.1),
    }
    return Trainer(args=args, callbacks=list(callbacks), **settled | chosen)
