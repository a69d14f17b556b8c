"""Power profiles of trainings that do not recur as jobs: a JSON file on this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bso.domain.commands import PowerMeasurement
from bso_client.atomic import replace_file

logger = logging.getLogger("bso")

_FORMAT = 1
_LOCK_TIMEOUT_S = 5.0  # others hold it for the time of one small write
_LOCK_PAUSE_S = 0.01


class ProfileFile:
    """Profiles by key. What cannot be read is a warning, and profiled anew; what cannot be written, a warning too.

    Written at once or not at all, under a lock beside it; each profile carries a checksum of its own.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, key: str) -> tuple[PowerMeasurement, ...]:
        """The profile under a key; empty if there is none, or none that can be read."""
        stored = self._read_all().get(key)
        if stored is None:
            return ()
        try:
            return _profile(stored)
        except (KeyError, TypeError, ValueError) as error:
            self._warn(f"the power profile in {self.path} is damaged ({error}): it is measured anew")
            return ()

    def write(self, key: str, measurements: Sequence[PowerMeasurement]) -> None:
        """Keep a profile under a key, beside the others; never raises."""
        content = [asdict(measured) for measured in measurements]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                profiles = self._read_all() | {key: {"measurements": content, "checksum": _checksum(content)}}
                replace_file(self.path, json.dumps({"format": _FORMAT, "profiles": profiles}, indent=1))
        except OSError as error:
            self._warn(f"the power profile cannot be kept in {self.path}: {error}")

    def _read_all(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._warn(f"power profiles cannot be read from {self.path} ({error}): they are measured anew")
            return {}
        if not isinstance(data, dict) or data.get("format") != _FORMAT or not isinstance(data.get("profiles"), dict):
            self._warn(f"{self.path} holds no power profiles in format {_FORMAT}: they are measured anew")
            return {}
        return dict(data["profiles"])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl

        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        with self.path.with_name(f"{self.path.name}.lock").open("a", encoding="utf-8") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_LOCK_PAUSE_S)
            yield

    def _warn(self, words: str) -> None:
        logger.warning("%s", words, extra={"action": "profile_file_failed"})


def _profile(stored: Any) -> tuple[PowerMeasurement, ...]:
    content = stored["measurements"]
    if stored["checksum"] != _checksum(content):
        raise ValueError("its checksum does not fit")
    profile = tuple(PowerMeasurement(**{name: float(value) for name, value in each.items()}) for each in content)
    numbers = [number for each in profile for number in asdict(each).values()]
    if not all(math.isfinite(number) and number > 0 for number in numbers):
        raise ValueError("expected positive numbers")
    return profile


def _checksum(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()
