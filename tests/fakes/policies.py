"""Policies of somebody else's distribution, as pip lays one out."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bso.domain.policies import find_policy, policy_named
from bso.schema.codec import all_events


@contextmanager
def installed(folder: Path, **policies: str) -> Iterator[None]:
    """Policies by their names, each with ``module:attribute``, where modules of the folder can be imported, too."""
    info = folder / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"{name} = {value}" for name, value in policies.items()]
    (info / "entry_points.txt").write_text("\n".join(["[bso.policies]", *lines, ""]), encoding="utf-8")
    sys.path.insert(0, str(folder))
    _look_again()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _look_again()


def _look_again() -> None:
    importlib.invalidate_caches()
    find_policy.cache_clear()
    policy_named.cache_clear()
    all_events.cache_clear()
