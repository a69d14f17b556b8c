"""What ranks exchange before a trial, and the hardware and meters that they have together. Rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bso.domain.hardware import EnergyMethod, HardwareKind
from bso_client.distributed.shares import Share
from bso_client.energy.monitor import Monitor
from bso_client.errors import InvalidSetting, RanksOutOfStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One rank that is ready for a trial.

    ``devices`` are what its monitor measures, by names that are the same on every rank that sees the device (the UUID
    of a GPU); none: it is not known what it measures, and nothing is taken to be measured twice, or, if
    ``is_counted_elsewhere``, other ranks measure all that it trains on. ``hardware`` is this rank's own, or, if
    ``is_given``, what the user says of the whole training. ``resumes`` is the trial of a loaded state, if there is one.
    """

    hardware: HardwareKind
    is_given: bool = False
    devices: tuple[str, ...] = ()
    is_counted_elsewhere: bool = False
    share_size: int
    resumes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a rank brings: what it sends the others, its part of a batch, and its meter (``assumed`` if that fails)."""

    member: Member
    share: Share
    monitor: Monitor
    assumed: Monitor


def check_joined(ranks: Sequence[Member]) -> None:
    """Raise what is wrong with ranks that are to train together: InvalidSetting, RanksOutOfStep."""
    sizes = [each.share_size for each in ranks]
    if len(set(sizes)) > 1:
        raise InvalidSetting(
            f"data_parallel_group must have as many members on every rank, got {sizes} (by rank): the batch is divided "
            "among them"
        )
    states = [each.resumes for each in ranks]
    strangers = [rank for rank, state in enumerate(states) if state is not None and state != states[0]]
    if strangers:
        raise RanksOutOfStep(
            f"load_state_dict was given another state on rank {strangers[0]} ({states[strangers[0]]}) than on rank 0 "
            f"({states[0]}): call it with the same one on every rank"
        )


def is_energy_assumed(ranks: Sequence[Member]) -> bool:
    """Whether the energy of all is assumed, since some rank cannot measure: the two are never mixed."""
    return any(each.hardware.energy_method is EnergyMethod.ASSUMED for each in ranks)


def counted_devices(ranks: Sequence[Member], rank: int) -> tuple[str, ...]:
    """The devices of a rank that it counts: each device is counted once, by the lowest rank that measures it."""
    elsewhere = {device for lower in ranks[:rank] for device in lower.devices}
    return tuple(device for device in ranks[rank].devices if device not in elsewhere)


def hardware_of_all(ranks: Sequence[Member]) -> HardwareKind:
    """The hardware kind of the whole training.

    What the user gave on rank 0 counts as it is. Otherwise: the model of rank 0; number of devices and largest power
    summed, each device once; the smallest memory; assumed energy if any rank assumes it.
    """
    first = ranks[0].hardware
    method = EnergyMethod.ASSUMED if is_energy_assumed(ranks) else first.energy_method
    if ranks[0].is_given:
        return replace(first, energy_method=method)
    parts = [_part(ranks, rank) for rank in range(len(ranks))]
    memories = [each.hardware.memory_mib for each in ranks if each.hardware.memory_mib is not None]
    return HardwareKind(
        gpu_model=first.gpu_model,
        max_power_w=sum(each.hardware.max_power_w * part for each, part in zip(ranks, parts, strict=True)),
        number_of_gpus=max(
            1, round(sum(each.hardware.number_of_gpus * part for each, part in zip(ranks, parts, strict=True)))
        ),
        memory_mib=min(memories, default=None),
        energy_method=method,
    )


def _part(ranks: Sequence[Member], rank: int) -> float:
    """The part of a rank's hardware that no lower rank has, from 0 to 1."""
    devices = ranks[rank].devices
    if ranks[rank].is_counted_elsewhere:
        return 0.0
    return len(counted_devices(ranks, rank)) / len(devices) if devices else 1.0
