"""Which samples each rank of a data-parallel training loads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import DistributedSampler, IterableDataset, Sampler

from bso_client.distributed.shares import Share
from bso_client.errors import InvalidSetting
from bso_client.trial import Trial


class ProportionalSampler(Sampler):  # type: ignore[misc]  # torch is Any where it need not be installed
    """Gives this rank its share of each batch, so that all ranks make the same number of steps, whatever the shares.

    ``batch_size`` is ``trial.batch_size``, the samples of one step of all ranks: the DataLoader beside it takes
    ``trial.local_batch_size``. No sample is loaded twice. What is left for the last batch of an epoch is divided in the
    same way; it is left out with ``drop_last``, and where it has fewer samples than there are ranks. ``drop_last`` is
    this sampler's: a DataLoader that drops what is not a full batch does so on some ranks alone.

    ``num_replicas`` and ``rank`` are as for a DistributedSampler: by default those of torch.distributed. So are
    ``shuffle`` and ``seed``, which must be the same on every rank; call ``set_epoch`` before each epoch. Raises
    InvalidSpec where a batch has fewer samples than there are ranks, InvalidSetting where that leaves nothing to load.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        distributed = torch.distributed
        self.num_replicas = int(distributed.get_world_size()) if num_replicas is None else num_replicas
        self.rank = int(distributed.get_rank()) if rank is None else rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.drop_last = drop_last
        self._batch_size = batch_size
        self._samples = len(dataset)
        left = self._samples % batch_size
        self._used = self._samples - (left if drop_last or left < self.num_replicas else 0)
        self._share = Share(position=self.rank, size=self.num_replicas, is_uneven=True)
        self._share.check([batch_size])
        if not self._used:
            raise InvalidSetting(
                f"there is no batch in an epoch: {self._samples} samples are divided among {self.num_replicas} ranks "
                f"in batches of {batch_size}{', and drop_last drops what is left' if drop_last else ''}. Pass more "
                "samples, or offer smaller batch_sizes"
            )

    def __iter__(self) -> Iterator[int]:
        """The indices of this rank's samples in this epoch."""
        order = list(range(self._samples))
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
            order = torch.randperm(self._samples, generator=generator).tolist()
        for begin in range(0, self._used, self._batch_size):
            size = min(self._batch_size, self._used - begin)
            first = begin + self._share.before(size)
            yield from order[first : first + self._share.of(size)]

    def __len__(self) -> int:
        """The samples of an epoch on this rank."""
        whole, left = divmod(self._used, self._batch_size)
        return whole * self._share.of(self._batch_size) + (self._share.of(left) if left else 0)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle the next epoch in an order of its own."""
        self.epoch = epoch


def divided_among_ranks(
    dataset: Any, trial: Trial, arguments: Mapping[str, Any], *, batch_size: int | None = None
) -> dict[str, Any]:
    """The arguments with which each rank loads its own part of the data; as they are where there is one rank only.

    Unless a sampler was passed, a DistributedSampler is made, or a ProportionalSampler where the ranks cannot have
    equal shares of ``batch_size``; ``shuffle`` becomes its, and so does the seed of ``generator``, which must be the
    same on every rank. An IterableDataset has to divide itself. Raises InvalidSetting for a sampler that does not
    divide so, and where it is not known which ranks load the same part.
    """
    ranks, world_size = trial.ranks, trial.accumulation().world_size
    if ranks.size == 1 or isinstance(dataset, IterableDataset):
        return dict(arguments)
    is_uneven = batch_size is not None and batch_size % world_size > 0
    sampler, drop_last = arguments.get("sampler"), bool(arguments.get("drop_last"))
    if _is_divided(sampler, ranks.size, is_uneven=is_uneven):
        if isinstance(sampler, ProportionalSampler) and drop_last and not sampler.drop_last:
            raise InvalidSetting(
                "with drop_last=True of the loader some ranks would drop the last batch, and others not: pass "
                "drop_last=True to the ProportionalSampler"
            )
        return dict(arguments)
    if world_size != ranks.size:
        kind = "ProportionalSampler(dataset, trial.batch_size, " if is_uneven else "DistributedSampler(dataset, "
        raise InvalidSetting(
            "with data_parallel_group= some ranks load the same samples, and the loader does not know which: pass "
            f"sampler={kind}num_replicas=..., rank=...) with this rank's place in its group"
        )
    generator = arguments.get("generator")
    division: dict[str, Any] = {
        "num_replicas": ranks.size,
        "rank": ranks.rank,
        "shuffle": bool(arguments.get("shuffle")),
        "seed": 0 if generator is None else generator.initial_seed(),
        "drop_last": drop_last,
    }
    if is_uneven:
        dividing: Any = ProportionalSampler(dataset, trial.batch_size, **division)
    else:
        dividing = DistributedSampler(dataset, **division)
    return {name: value for name, value in arguments.items() if name != "shuffle"} | {"sampler": dividing}


def _is_divided(sampler: Any, size: int, *, is_uneven: bool) -> bool:
    """Whether a sampler was passed that divides the samples among the ranks. Raises InvalidSetting for another one."""
    if sampler is None:
        return False
    if not hasattr(sampler, "num_replicas"):
        raise InvalidSetting(
            f"with this {type(sampler).__name__} each of the {size} ranks would load the same samples: leave "
            "sampler out, and a DistributedSampler is made, or pass one that divides as that does"
        )
    if is_uneven and isinstance(sampler, DistributedSampler):
        raise InvalidSetting(
            f"with this {type(sampler).__name__} all ranks load as many samples, in batches of different sizes "
            "(uneven=True), and would make different numbers of steps: leave sampler out, and a ProportionalSampler is "
            "made, or pass one"
        )
    return True
