"""A small task and a small model; torch is all that they need."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

NUMBER_OF_SAMPLES = 64


class FirstTokens(torch.utils.data.Dataset):  # type: ignore[misc]  # torch has no types here
    """Sequences of tokens; the label is whether the first one is above the middle."""

    def __init__(self, count: int = NUMBER_OF_SAMPLES, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(2, 20, (count, 6), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens[0] > 10).long()}


class Classifier(torch.nn.Module):  # type: ignore[misc]  # as above
    """As little as a Trainer can train. ``largest_batch``: what fits in its memory."""

    def __init__(self, largest_batch: int | None = None) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 4)
        self.head = torch.nn.Linear(24, 2)
        self.largest_batch = largest_batch
        self.batches_seen: list[int] = []

    def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
        if self.training:
            self.batches_seen.append(len(input_ids))
            if self.largest_batch is not None and len(input_ids) > self.largest_batch:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        logits = self.head(self.embedding(input_ids).flatten(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def for_ever(values: Iterable[float]) -> Iterator[float]:
    """These values, and then the last one again and again."""
    last = 0.0
    for last in values:
        yield last
    while True:
        yield last
