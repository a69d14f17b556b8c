"""Train a classifier of moods on data that drift: one slice of messages for each recurrence of the job.

    python generate.py messages.csv
    python slice.py messages.csv slices --time time --window 30d --stride 15d
    bso recur 18 -- python train.py --slices slices

Each recurrence trains on the next slice, as a nightly training would on the latest messages: `bso recur` says which,
by BSO_RECURRENCE_NUMBER. By hand, `--slice 3` does; `--all` trains on all slices in turn, one recurrence each.
Fine-tunes a transformer of Hugging Face where its weights are at hand (`--model FOLDER-OR-NAME`, nothing is
downloaded), else trains a small model from scratch. Needs torch; runs on a GPU if there is one.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import uuid
from typing import Any

from messages import Messages, add_slice_arguments, read_manifest, read_part

from bso_client import BatchSizeOptimizer, JobSpec, LearningRate, Trial

try:
    import torch
    from models import Reader, reader_for
    from torch import nn
    from torch.utils.data import DataLoader
except ImportError as missing:
    sys.exit(f"this example needs torch ({missing}): pip install torch")


def make_loader(messages: Messages, reader: Reader, *, batch_size: int, shuffle: bool) -> Any:
    """Batches of (tokens, mask, labels), padded to the longest message of each."""

    def collate(batch: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        longest = max(len(tokens) for tokens, _ in batch)
        tokens = torch.tensor([line + [reader.padding] * (longest - len(line)) for line, _ in batch])
        mask = torch.tensor([[1] * len(line) + [0] * (longest - len(line)) for line, _ in batch])
        return tokens, mask, torch.tensor([label for _, label in batch])

    examples: Any = list(zip(reader.encode(messages.texts), messages.labels, strict=True))
    return DataLoader(examples, batch_size=batch_size, shuffle=shuffle, collate_fn=collate)


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, device: torch.device) -> None:
    """Go over the training messages once."""
    model.train()
    for tokens, mask, labels in loader:
        optimizer.zero_grad()
        scores = model(tokens.to(device), mask.to(device))
        nn.functional.cross_entropy(scores, labels.to(device)).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, loader: Any, device: torch.device) -> float:
    """The share of messages whose mood is found."""
    model.eval()
    right = [
        (model(tokens.to(device), mask.to(device)).argmax(1) == labels.to(device)) for tokens, mask, labels in loader
    ]
    return float(torch.cat(right).float().mean())


def train(trial: Trial, reader: Reader, training: Messages, validation: Messages, device: torch.device) -> None:
    """One training with one batch size."""
    loader = make_loader(training, reader, batch_size=trial.batch_size, shuffle=True)
    held_out = make_loader(validation, reader, batch_size=256, shuffle=False)
    model = reader.make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=trial.learning_rate)
    with trial:
        while not trial.finished:
            train_epoch(model, optimizer, loader, device)
            trial.on_evaluate(accuracy(model, held_out, device))


def recurrence(arguments: argparse.Namespace, number: int, *, recurrence_id: str | None = None) -> None:
    """Train on one slice until there is a model."""
    manifest = read_manifest(arguments.slices)
    training = read_part(arguments.slices, manifest, number, "training")
    validation = read_part(arguments.slices, manifest, number, "validation")
    labels = len(manifest["labels"])
    reader = reader_for(arguments.model, training.texts, labels=labels, most_tokens=arguments.most_tokens)
    spec = JobSpec(
        job_id=f"sentiment-{reader.name}",
        batch_sizes=arguments.batch_sizes,
        default_batch_size=arguments.default_batch_size,
        target_metric=arguments.target,
        max_epochs=arguments.max_epochs,
        policy=arguments.policy,
        num_pruning_rounds=arguments.pruning_rounds,
        window_size=arguments.window_size,
    )
    learning_rate = LearningRate(
        arguments.learning_rate or reader.learning_rate,
        reference_batch_size=reader.reference_batch_size,
        rule="square_root",  # for Adam and its kin; "linear" for SGD
    )
    device = torch.device(arguments.device)
    torch.manual_seed(arguments.seed + number)
    with BatchSizeOptimizer(spec, learning_rate=learning_rate, recurrence_id=recurrence_id) as bso:
        for trial in bso.trials():
            train(trial, reader, training, validation, device)
            print(
                f"slice {number}, {reader.name}: trial {trial.trial_number}, batch size {trial.batch_size}, "
                f"epoch {trial.epoch:g}, cost {trial.cost:.3g} J: {trial.outcome_reason}",
                flush=True,
            )


def parsed(number: str | None) -> argparse.Namespace:
    """The command line; ``number`` is what `bso recur` says, None without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_slice_arguments(parser)
    parser.add_argument("--all", action="store_true", help="train on every slice, one recurrence each")
    parser.add_argument("--model", help="a folder, a name in the cache, or scratch (bert-base-uncased if it is there)")
    parser.add_argument("--target", type=float, default=0.84, help="accuracy that a model must have (0.84)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[16, 32, 64, 128, 256], help="(16 to 256)")
    parser.add_argument("--default-batch-size", type=int, default=64, help="(64)")
    parser.add_argument("--max-epochs", type=int, default=60, help="(60)")
    parser.add_argument(
        "--policy", default="curve", help="how batch sizes are chosen: curve, or pruning_thompson (curve)"
    )
    parser.add_argument("--pruning-rounds", type=int, default=2, help="of pruning_thompson: rounds of exploration (2)")
    parser.add_argument(
        "--window-size", type=int, default=10, help="of pruning_thompson: learn from so many trials per batch size (10)"
    )
    parser.add_argument("--learning-rate", type=float, help="for the reference batch size (the model's own)")
    parser.add_argument("--most-tokens", type=int, default=64, help="cut longer messages (64)")
    parser.add_argument("--seed", type=int, default=os.environ.get("BSO_SEED", "0"), help="(BSO_SEED, else 0)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(cuda if it is there)"
    )
    arguments = parser.parse_args()
    if arguments.slice is None and not arguments.all:
        if number is None:
            parser.error("which slice? give --slice N or --all, or run under `bso recur`")
        arguments.slice = int(number)
    return arguments


def main() -> None:
    """Train on the slice that is due, or on all."""
    gc.freeze()  # an epoch here is shorter than Python's search for garbage among all that torch has loaded
    logging.basicConfig(format="%(message)s")
    arguments = parsed(os.environ.get("BSO_RECURRENCE_NUMBER"))
    if not arguments.all:
        recurrence(arguments, arguments.slice)
        return
    for entry in read_manifest(arguments.slices)["slices"]:
        recurrence(arguments, entry["number"], recurrence_id=str(uuid.uuid4()))


if __name__ == "__main__":
    main()
