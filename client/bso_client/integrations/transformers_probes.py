"""Probing epoch costs in a Hugging Face Trainer, by itself: between an evaluation and the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset
from transformers import TrainingArguments

from bso_client.integrations.probe_step import ProbeStep, TrainerProbes


class TransformersProbes(TrainerProbes):
    """Probes for a trial whose training a Trainer runs.

    A Trainer that accumulates gradients, divides the model or a batch, compiles, or reads a stream probes nothing.
    """

    def evaluated(self, args: TrainingArguments, model: Any, loader: Any) -> None:
        """The model was evaluated, and its training goes on."""
        is_divided = args.gradient_accumulation_steps > 1 or args.n_gpu > 1 or bool(args.deepspeed or args.fsdp)
        is_stream = isinstance(getattr(loader, "dataset", None), IterableDataset | None)
        if not (is_divided or args.torch_compile or is_stream or model is None):
            self.probe(lambda: ProbeStep(model, lambda batch: _loss(model, batch, args), loader), trainer=loader)


def _loss(model: Any, batch: Mapping[str, Any], args: TrainingArguments) -> torch.Tensor:
    """The loss that a model of transformers computes from a batch with labels, as precisely as in the training."""
    inputs = {name: value.to(args.device) if hasattr(value, "to") else value for name, value in batch.items()}
    kind = torch.bfloat16 if args.bf16 else torch.float16
    with torch.autocast(args.device.type, dtype=kind, enabled=args.bf16 or args.fp16):
        found = model(**inputs)
    loss: torch.Tensor = found["loss"] if isinstance(found, Mapping) else found[0]
    return loss
