"""Pins: the releases that the image is made of, each with the names of those that need it.

``python deploy/pins.py REPORT`` prints them, from what ``pip install --report`` has written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "bso-optimizer"
FILE = Path(__file__).with_name("constraints.txt")
HEADER = "# What the image is made of. Renew it with deploy/pin-constraints, and run the tests with the same releases."
# Where the image runs them; what pip reports is resolved for it, whatever runs pip.
IMAGE = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux", "os_name": "posix"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A release, and what requires it: names of others, or the project's."""

    name: str
    version: str
    needed_by: tuple[str, ...]


def pins(text: str) -> list[Pin]:
    """Those that stand in a file of constraints."""
    lines = (line.partition("  # via ") for line in text.splitlines() if line and not line.startswith("#"))
    return [
        Pin(name=pin.partition("==")[0], version=pin.partition("==")[2], needed_by=tuple(by.split(", ")))
        for pin, _, by in lines
    ]


def resolved(report: Mapping[str, Any]) -> list[Pin]:
    """Those that pip has found."""
    found = {_name(one["metadata"]["name"]): one for one in report["install"]}
    needs = {name: set(_requirements(one)) for name, one in sorted(found.items())}
    return [
        Pin(
            name=name,
            version=found[name]["metadata"]["version"],
            needed_by=(
                *([PROJECT] if found[name]["requested"] else []),
                *(other for other in needs if name in needs[other]),
            ),
        )
        for name in needs
    ]


def _requirements(found: Mapping[str, Any]) -> Iterator[str]:
    extras = ("", *found.get("requested_extras", ()))
    for requirement in map(Requirement, found["metadata"].get("requires_dist", ())):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**IMAGE, "extra": extra}) for extra in extras):
            yield _name(requirement.name)


def _name(text: str) -> str:
    return str(canonicalize_name(text))


if __name__ == "__main__":
    print(HEADER)
    for pin in resolved(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))):
        print(f"{pin.name}=={pin.version}  # via {', '.join(pin.needed_by)}")
