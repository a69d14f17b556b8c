"""Which seeds are for choosing rules and constants, and which for reporting figures of them: never the same.

A figure obtained by looking at the seeds it is reported on says nothing. Truths, runs and noise all follow from the
seed of a job. Whoever has looked at results of a pool of REPORTING while changing a policy moves it to CHOOSING here,
and reports on the next one.
"""

from collections.abc import Sequence

CHOOSING = (range(100_000), range(100_000, 200_000), range(200_000, 300_000))
"""For trying out: look as often as you like. Figures in documents that are older than probes are from the second, and
those of probes from the third."""
REPORTING = (range(300_000, 400_000), range(400_000, 500_000))
"""For figures in documents: the first pool is in use."""

PURPOSES = {"choosing": CHOOSING, "reporting": REPORTING}


class MixedSeeds(ValueError):
    """Seeds of more than one pool, of none, or of another purpose than was named."""


def seeds_for(purpose: str, *, count: int, first: int | None = None) -> Sequence[int]:
    """So many seeds of one pool, from ``first`` on (its first one).

    Raises:
        MixedSeeds: where they are not all in one pool for this purpose.
    """
    pools = PURPOSES[purpose]
    if count < 1:
        raise MixedSeeds(f"expected at least 1 seed, got {count}")
    seeds = range(pools[0].start if first is None else first, (pools[0].start if first is None else first) + count)
    if not any(seeds[0] in pool and seeds[-1] in pool for pool in pools):
        held = ", ".join(f"{pool.start} to {pool.stop - 1}" for pool in pools)
        raise MixedSeeds(f"seeds {seeds.start} to {seeds.stop - 1} are not all in one pool for {purpose}: {held}")
    return seeds
