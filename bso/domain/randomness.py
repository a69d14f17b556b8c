"""Random numbers as a pure function of (seed, trial number, draw): nothing to store, the same on every machine.

A counter-based generator in the sense of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC '11),
with BLAKE2b in place of its bijection. Normals come from the inverse distribution function in plain Python
(statistics.NormalDist), so no release of numpy changes a decision.
"""

from __future__ import annotations

import hashlib
from statistics import NormalDist

_STANDARD_NORMAL = NormalDist()
_BITS = 52  # so that word + 0.5 is exact and the result is never 0 or 1


def uniform(seed: int, trial_number: int, draw: int) -> float:
    """A number of the open interval (0, 1), uniformly distributed."""
    counter = f"{seed}/{trial_number}/{draw}".encode("ascii")
    word = int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "big") >> (64 - _BITS)
    return (word + 0.5) / (1 << _BITS)


def standard_normal(seed: int, trial_number: int, draw: int) -> float:
    """A number drawn from the normal distribution with mean 0 and variance 1."""
    return _STANDARD_NORMAL.inv_cdf(uniform(seed, trial_number, draw))


def seed_from(text: str) -> int:
    """A seed for a job that named none: 31 bits derived from the registering command's id."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
