"""Training scripts as processes of their own, and what is recorded about them."""

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bso.domain.events import Event
from bso.domain.trial import Trial
from bso.storage import open_store
from bso.storage.store import SqlStore
from tests.servers import PATIENCE_S
from tests.servers.leaks import printed

T = TypeVar("T")

PREAMBLE = """
import os, signal, sys
from bso_client import *

spec = JobSpec(job_id="job", batch_sizes=[32, 64, 128], default_batch_size=64, target_metric=0.9, max_epochs=5)
hardware = HardwareKind(gpu_model="test", max_power_w=1.0, energy_method=EnergyMethod.ASSUMED)

def make(**options):
    return BatchSizeOptimizer(spec, **{"hardware": hardware, **options})

if __name__ == "__main__":
    bso = make()

"""


class Script:
    """A training script over the SQLite file of a state directory, or over an address that is given, or in a file."""

    def __init__(self, folder: Path, body: str, *, url: str | None = None, url_file: Path | None = None) -> None:
        self.path = folder / "training_script.py"
        self.path.write_text(PREAMBLE + textwrap.dedent(body))
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("BSO_")}
        self._environ |= {"BSO_STATE_DIR": str(folder / "state"), "BSO_ENERGY": "assumed"}
        if url is not None:
            self._environ["BSO_URL"] = url
        if url_file is not None:
            self._environ["BSO_URL_FILE"] = str(url_file)

    def run(self, *arguments: str, inside: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run it to its end. ``inside``: the command that runs it, such as ``setpriv``."""
        command = [*inside, sys.executable, str(self.path), *arguments]
        done = subprocess.run(
            command, env=self._environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        printed(done.stdout, done.stderr)
        return done

    @contextmanager
    def running(self, *arguments: str, inside: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
        """Run it in the background, from the moment it says ``ready`` on stdout; it is killed afterwards.

        ``inside``: the command that runs it, such as ``unshare``.
        """
        command = [*inside, sys.executable, str(self.path), *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=self._environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                assert process.stdout is not None
                if not any(line.strip() == "ready" for line in process.stdout):
                    raise AssertionError(process.communicate()[1])
                yield process
            finally:
                process.kill()


def recorded_trials(folder: Path, job_id: str = "job") -> Sequence[Trial]:
    """The trials in the SQLite file of a state directory."""
    return asyncio.run(_read(folder, lambda store: store.trials(job_id)))


def recorded_events(folder: Path, job_id: str = "job") -> Sequence[Event]:
    """The events in the SQLite file of a state directory."""
    return [stored.recorded.event for stored in asyncio.run(_read(folder, lambda store: store.history(job_id)))]


async def _read(folder: Path, work: Callable[[SqlStore], Awaitable[T]]) -> T:
    store = open_store(f"sqlite:///{folder / 'state' / 'bso.sqlite'}")
    try:
        return await work(store)
    finally:
        await store.close()
