"""Which batch size to train with while nobody can be asked."""

from __future__ import annotations

from collections.abc import Sequence

from bso.domain.trial import OUT_OF_MEMORY, reason_code
from bso_client.notes import Note
from bso_client.progress import Progress


def choose_alone(note: Note, failed: Sequence[Progress]) -> tuple[int, str]:
    """The best batch size last heard of, else the default one; after failures the nearest that has not failed.

    After an out-of-memory only smaller ones remain. Returns the batch size and the reason.
    """
    spec = note.spec
    first, words = spec.default_batch_size, "the default one"
    if note.best_batch_size in spec.batch_sizes and note.best_batch_size is not None:
        first, words = note.best_batch_size, "the best one last heard of"
    left = _left(spec.batch_sizes, failed) or spec.batch_sizes
    nearest = min(left, key=lambda size: (abs(size - first), size))
    if nearest != first:
        words = f"the nearest to {first} that has not failed"
    return nearest, f"the optimizer is out of reach: {words}"


def _left(sizes: Sequence[int], failed: Sequence[Progress]) -> list[int]:
    tried = {progress.batch_size for progress in failed}
    ceilings = [progress.batch_size for progress in failed if reason_code(progress.outcome_reason) == OUT_OF_MEMORY]
    return [size for size in sizes if size not in tried and all(size < ceiling for ceiling in ceilings)]
