"""The state of a training in a file, with the optimizer's, so that the next run goes on in the same trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from bso_client import BatchSizeOptimizer


class Checkpoint:
    """A file that one rank writes and all read. Without a path it does nothing.

    ``saved`` is what an earlier run has left; None: there is nothing, or it was restored already.
    """

    def __init__(self, path: Path | None) -> None:
        self.saved: dict[str, Any] | None = None
        self._path = path
        if path is not None and path.exists():
            self.saved = torch.load(path, map_location="cpu")

    def restore(self, parts: Mapping[str, Any]) -> None:
        """Give the parts of the training their saved states back, once: the next trial begins anew."""
        saved, self.saved = self.saved, None
        for name, part in parts.items() if saved is not None else ():
            part.load_state_dict(saved[name])

    def save(self, parts: Mapping[str, Any], bso: BatchSizeOptimizer) -> None:
        """Write the states of the parts and of the running trial; a file that is there stays whole until the end."""
        if self._path is None:
            return
        state = {name: part.state_dict() for name, part in parts.items()} | {"bso": bso.state_dict()}
        if self._writes:
            partial = self._path.with_name(self._path.name + ".partial")
            torch.save(state, partial)
            partial.replace(self._path)

    def forget(self) -> None:
        """Remove the file: its trial has ended."""
        if self._path is not None and self._writes:
            self._path.unlink(missing_ok=True)

    @property
    def _writes(self) -> bool:
        return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
