"""Fine-tune a transformer with the Trainer of Hugging Face, one slice of messages for each recurrence of the job.

    hf download distilbert-base-uncased
    bso recur 18 -- python train_trainer.py --slices slices --model distilbert-base-uncased

The same as train.py does in a loop of its own, for those who leave the loop to a Trainer: the batch size goes into its
arguments before it exists, a callback reports and stops. Needs transformers[torch], and weights that are at hand.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any

from messages import Messages, add_slice_arguments, read_manifest, read_part

from bso_client import BatchSizeOptimizer, JobSpec, LearningRate

try:
    from models import is_at_hand
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        EvalPrediction,
        Trainer,
        TrainingArguments,
    )

    from bso_client.integrations.transformers import BsoCallback, apply_trial, resumable_trials
except ImportError as missing:
    sys.exit(f"this example needs transformers and torch ({missing}): pip install 'transformers[torch]'")


def parsed(number: str | None) -> argparse.Namespace:
    """The command line; ``number`` is what `bso recur` says, None without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_slice_arguments(parser)
    parser.add_argument("--model", default="bert-base-uncased", help="a folder or a name (bert-base-uncased)")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where checkpoints and the model go (out)")
    parser.add_argument("--target", type=float, default=0.84, help="accuracy that a model must have (0.84)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128], help="(8 to 128)")
    parser.add_argument("--default-batch-size", type=int, default=32, help="(32)")
    parser.add_argument("--max-epochs", type=int, default=10, help="(10)")
    parser.add_argument("--max-micro-batch-size", type=int, metavar="N", help="what fits on one GPU at a time")
    parser.add_argument("--learning-rate", type=float, default=4e-5, help="at batch size 32 (4e-5)")
    parser.add_argument("--most-tokens", type=int, default=64, help="cut longer messages (64)")
    arguments = parser.parse_args()
    arguments.slice = arguments.slice or int(number or 0)
    if not arguments.slice:
        parser.error("which slice? give --slice N, or run under `bso recur`")
    if not is_at_hand(arguments.model):
        parser.error(f"--model {arguments.model} is not at hand: `hf download {arguments.model}` fetches it")
    return arguments


def encoded(tokenizer: Any, messages: Messages, most_tokens: int) -> list[dict[str, Any]]:
    """Messages as a Trainer reads them; the collator pads them."""
    tokens = tokenizer(messages.texts, truncation=True, max_length=most_tokens)["input_ids"]
    return [{"input_ids": line, "labels": label} for line, label in zip(tokens, messages.labels, strict=True)]


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """The share of messages whose mood is found."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def optimizer(arguments: argparse.Namespace) -> BatchSizeOptimizer:
    """What chooses the batch sizes of this model."""
    return BatchSizeOptimizer(
        JobSpec(
            job_id=f"sentiment-trainer-{Path(arguments.model).name}",
            batch_sizes=arguments.batch_sizes,
            default_batch_size=arguments.default_batch_size,
            target_metric=arguments.target,
            max_epochs=arguments.max_epochs,
        ),
        learning_rate=LearningRate(arguments.learning_rate, reference_batch_size=32, rule="square_root"),
    )


def main() -> None:
    """Train on the slice that is due, until there is a model."""
    logging.basicConfig(format="%(message)s")
    arguments = parsed(os.environ.get("BSO_RECURRENCE_NUMBER"))
    manifest = read_manifest(arguments.slices)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, local_files_only=True)
    training, validation = (
        encoded(tokenizer, read_part(arguments.slices, manifest, arguments.slice, part), arguments.most_tokens)
        for part in ("training", "validation")
    )
    bso = optimizer(arguments)
    plain = TrainingArguments(
        str(arguments.out / f"slice-{arguments.slice}"),
        num_train_epochs=arguments.max_epochs,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        report_to="none",
    )
    for trial in resumable_trials(bso, plain):
        args = apply_trial(plain, trial, max_micro_batch_size=arguments.max_micro_batch_size)
        with trial:
            trainer = Trainer(
                model=AutoModelForSequenceClassification.from_pretrained(
                    arguments.model, num_labels=len(manifest["labels"]), local_files_only=True
                ),
                args=args,
                train_dataset=training,
                eval_dataset=validation,
                data_collator=DataCollatorWithPadding(tokenizer),
                compute_metrics=accuracy,
                callbacks=[BsoCallback(trial, metric="accuracy")],
            )
            trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        how = f"trial {trial.trial_number}, batch size {trial.batch_size}"
        print(f"slice {arguments.slice}: {how}: {trial.outcome_reason}")
    if trial.converged:
        trainer.save_model(str(arguments.out / f"model-{arguments.slice}"))


if __name__ == "__main__":
    main()
