"""What reads texts: a pretrained transformer where its weights are at hand, else a small model trained from scratch."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

PADDING, UNKNOWN = 0, 1

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Turns texts into token numbers, and makes models that classify them.

    A model takes ``tokens`` and ``mask`` (1 where there is a token), both of shape [messages, tokens], and gives
    scores of shape [messages, labels]. ``learning_rate`` is the one for ``reference_batch_size``.
    """

    name: str
    encode: Encode
    make_model: Callable[[], nn.Module]
    padding: int
    learning_rate: float
    reference_batch_size: int


class BagOfWords(nn.Module):
    """The mean of the words' vectors, then one linear layer."""

    def __init__(self, *, words: int, labels: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=PADDING)
        self.output = nn.Linear(width, labels)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Scores of each label."""
        summed = (self.embedding(tokens) * mask.unsqueeze(-1)).sum(1)
        return self.output(summed / mask.sum(1, keepdim=True).clamp(min=1))


class Pretrained(nn.Module):
    """A sequence classifier of the transformers library, fine-tuned as a whole."""

    def __init__(self, path: str, labels: int) -> None:
        super().__init__()
        from transformers import AutoModelForSequenceClassification

        self.model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=labels, local_files_only=True)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Scores of each label."""
        return self.model(input_ids=tokens, attention_mask=mask).logits


def from_scratch(texts: Sequence[str], *, labels: int, most_tokens: int, most_words: int = 20_000) -> Reader:
    """A bag of the words that occur in ``texts`` more than once."""
    counts = Counter(word for text in texts for word in text.lower().split())
    common = [word for word, count in counts.most_common(most_words) if count > 1]
    numbers = {word: number for number, word in enumerate(common, start=UNKNOWN + 1)}

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [[numbers.get(word, UNKNOWN) for word in text.lower().split()[:most_tokens]] for text in texts]

    return Reader(
        name="bag-of-words",
        encode=encode,
        make_model=lambda: BagOfWords(words=len(numbers) + 2, labels=labels),
        padding=PADDING,
        learning_rate=0.003,
        reference_batch_size=64,
    )


def pretrained(path: str, *, labels: int, most_tokens: int) -> Reader:
    """A pretrained model, from a folder or from the cache; nothing is downloaded."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        encoded: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=most_tokens)["input_ids"]
        return encoded

    return Reader(
        name=Path(path).name,
        encode=encode,
        make_model=lambda: Pretrained(path, labels),
        padding=tokenizer.pad_token_id or 0,
        learning_rate=4e-5,
        reference_batch_size=32,
    )


def is_at_hand(model: str) -> bool:
    """Whether a pretrained model's weights are in a folder or in the cache."""
    if importlib.util.find_spec("transformers") is None:
        return False
    if (Path(model) / "config.json").is_file():
        return True
    from huggingface_hub import try_to_load_from_cache

    files = ("model.safetensors", "pytorch_model.bin")
    return bool(re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model)) and any(
        isinstance(try_to_load_from_cache(model, file), str) for file in files
    )


def reader_for(model: str | None, texts: Sequence[str], *, labels: int, most_tokens: int) -> Reader:
    """The reader that ``--model`` asks for; without it, BERT where its weights are at hand."""
    wanted = model or "bert-base-uncased"
    if wanted != "scratch" and is_at_hand(wanted):
        return pretrained(wanted, labels=labels, most_tokens=most_tokens)
    if model not in {None, "scratch"}:
        sys.exit(
            f"--model {model}: no such folder, and nothing of that name in the cache of Hugging Face (or transformers "
            f"is not installed): fetch it with `hf download {model}`, or train `--model scratch`"
        )
    return from_scratch(texts, labels=labels, most_tokens=most_tokens)
