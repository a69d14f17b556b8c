"""Which GPUs CUDA_VISIBLE_DEVICES lets a process see, by the rules of the CUDA runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence


def names_mig_slice(visible_devices: str | None) -> bool:
    """Whether the process is to run on slices of partitioned GPUs (MIG)."""
    return visible_devices is not None and visible_devices.strip().startswith("MIG-")


def visible_positions(visible_devices: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """The positions among ``uuids`` of the GPUs that the process sees, in its own order.

    None: all of them. As CUDA has it, the list ends at the first entry that names no GPU (an index too large or
    negative, an unknown or ambiguous beginning of a UUID), and one that names a GPU twice names none at all.
    """
    if visible_devices is None:
        return tuple(range(len(uuids)))
    read = _by_uuid if visible_devices.strip().startswith("GPU-") else _by_index
    chosen: list[int] = []
    for entry in visible_devices.split(","):
        position = read(entry.strip(), uuids)
        if position is None:
            break
        if position in chosen:
            return ()
        chosen.append(position)
    return tuple(chosen)


def _by_index(entry: str, uuids: Sequence[str]) -> int | None:
    digits = re.match(r"\+?(\d+)", entry)  # CUDA reads "1st" as 1
    index = int(digits[1]) if digits else len(uuids)
    return index if index < len(uuids) else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    if not entry.startswith("GPU-"):
        return None
    fitting = [position for position, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
