"""Warnings that a process gives once, however many trainings they apply to."""

from __future__ import annotations

import logging

said: set[str] = set()
"""What this process has warned of, which it does not repeat."""


def warn_once(words: str, *, action: str) -> str:
    """Warn, unless this process has done so before in the same words; returns them."""
    if words not in said:
        said.add(words)
        logging.getLogger("bso").warning("%s", words, extra={"action": action})
    return words
