"""What a DataLoader is made with: the arguments that the optimizer decides, and each rank's part of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset

from bso_client.errors import InvalidSetting
from bso_client.trial import Trial

BATCH_SIZE_TWICE = (
    "TrainingLoader takes no batch_size: the optimizer chooses it. Leave it out; those to choose from, and the one "
    "used until now, stand in JobSpec(batch_sizes=..., default_batch_size=...)"
)


def check_training_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise InvalidSetting for arguments of a DataLoader that fix the batch size."""
    if "batch_size" in arguments:
        raise InvalidSetting(BATCH_SIZE_TWICE)
    check_no_batch_sampler("TrainingLoader", arguments)


def check_no_batch_sampler(loader: str, arguments: Mapping[str, Any]) -> None:
    """Raise InvalidSetting for a batch_sampler."""
    if arguments.get("batch_sampler") is not None:
        raise InvalidSetting(
            f"{loader} takes no batch_sampler, which decides the batch size itself: pass sampler=, which decides the "
            "order of the samples only"
        )


def check_samples_per_epoch(dataset: Any, samples_per_epoch: int | None) -> None:
    """Raise InvalidSetting where the length of an epoch is unknown, or known twice."""
    is_stream = isinstance(dataset, IterableDataset)
    if is_stream and samples_per_epoch is None:
        raise InvalidSetting(
            "an IterableDataset has no epoch length: TrainingLoader(..., samples_per_epoch=50_000). The "
            "stream goes on from epoch to epoch, and begins again when it ends"
        )
    if not is_stream and samples_per_epoch is not None:
        raise InvalidSetting(
            f"samples_per_epoch is for an IterableDataset; an epoch of this {type(dataset).__name__} is one pass over "
            "it: leave the argument out, or pass a sampler that draws fewer samples"
        )
    if samples_per_epoch is not None and not samples_per_epoch >= 1:
        raise InvalidSetting(f"samples_per_epoch must be a number of samples of 1 or more, got {samples_per_epoch!r}")


def divided_among_ranks(dataset: Any, trial: Trial, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which each rank loads its own part of the data; as they are where there is one rank only.

    A DistributedSampler is made unless one was passed; ``shuffle`` becomes its, and so does the seed of ``generator``,
    which must be the same on every rank. An IterableDataset has to divide itself. Raises InvalidSetting for a sampler
    that does not divide, and where it is not known which ranks load the same part.
    """
    ranks = trial.ranks
    if ranks.size == 1 or isinstance(dataset, IterableDataset):
        return dict(arguments)
    sampler = arguments.get("sampler")
    if hasattr(sampler, "num_replicas"):
        return dict(arguments)
    if sampler is not None:
        raise InvalidSetting(
            f"with this {type(sampler).__name__} each of the {ranks.size} ranks would load the same samples: leave "
            "sampler out, and a DistributedSampler is made, or pass one that divides as that does"
        )
    if trial.accumulation().world_size != ranks.size:
        raise InvalidSetting(
            "with data_parallel_group= some ranks load the same samples, and the loader does not know which: pass "
            "sampler=DistributedSampler(dataset, num_replicas=..., rank=...) with this rank's place in its group"
        )
    generator = arguments.get("generator")
    dividing = DistributedSampler(
        dataset,
        num_replicas=ranks.size,
        rank=ranks.rank,
        shuffle=bool(arguments.get("shuffle")),
        seed=0 if generator is None else generator.initial_seed(),
        drop_last=bool(arguments.get("drop_last")),
    )
    return {name: value for name, value in arguments.items() if name != "shuffle"} | {"sampler": dividing}


def check_not_empty(batches: int, *, batch_size: int, dataset: Any) -> None:
    """Raise InvalidSetting where an epoch would be over before it began."""
    if batches == 0:
        raise InvalidSetting(
            f"there is no batch in an epoch: {len(dataset)} samples, batch size {batch_size}, and drop_last drops what "
            f"is left. Take {batch_size} out of batch_sizes, or drop_last=True out of the loader"
        )
