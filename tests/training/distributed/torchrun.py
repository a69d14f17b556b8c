"""Starts stories under torchrun, and gathers what their ranks wrote down."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bso.domain.trial import Trial
from bso.storage import open_store
from tests.servers import PATIENCE_S
from tools.private_servers.ports import ClaimedPorts

ROOT = Path(__file__).parents[3]
TORCHRUN = Path(sys.executable).parent / "torchrun"
STORIES = Path(__file__).parent / "stories"
_FOREIGN = ("BSO_", "PET_", "TORCHELASTIC_", "SLURM_", "WORLD_SIZE", "RANK", "LOCAL_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What came of a launch: exit codes of the agents, what each rank said, what was printed."""

    codes: tuple[int, ...]
    said: dict[int, list[dict[str, Any]]]
    printed: str
    folder: Path

    def of_all(self, name: str) -> list[list[Any]]:
        """What each rank said under a name, by rank."""
        return [[each[name] for each in self.said[rank] if name in each] for rank in sorted(self.said)]

    def same(self, name: str) -> list[Any]:
        """What all ranks said alike under a name."""
        first, *others = self.of_all(name)
        assert all(other == first for other in others), self.of_all(name)
        return first

    def trials(self, job_id: str = "job", *, url: str | None = None) -> Sequence[Trial]:
        """The trials in the story's database, or in another."""

        async def read() -> Sequence[Trial]:
            store = open_store(url or f"sqlite:///{self.folder / 'bso.sqlite'}")
            try:
                return await store.trials(job_id)
            finally:
                await store.close()

        return asyncio.run(read())


def launch(
    story: str,
    folder: Path,
    *words: object,
    processes: int = 2,
    nodes: int = 1,
    max_restarts: int = 0,
    environ: dict[str, str] | None = None,
) -> Launched:
    """Run a story to its end, on one agent for each node."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    surroundings |= {"STORY_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    surroundings |= {"BSO_ENERGY": "assumed", "GLOO_SOCKET_IFNAME": "lo"} | (environ or {})
    surroundings["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [surroundings.get("PYTHONPATH")])])
    if max_restarts:  # the training's own gloo group does not survive a restart over the store that torchrun shares
        surroundings["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with ClaimedPorts(1) as meeting:
        common = [TORCHRUN, "--nproc-per-node", processes, "--max-restarts", max_restarts, "--rdzv-id", "night-1"]
        common += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{meeting.numbers[0]}", "--nnodes", nodes]
        command = [*map(str, [*common, "--monitor-interval", 0.1, STORIES / f"{story}.py", *words])]
        agents = [_started(command, surroundings, folder / f"agent-{node}.log") for node in range(nodes)]
        try:
            codes = tuple(agent.wait(4 * PATIENCE_S) for agent in agents)
        finally:
            for agent in agents:
                agent.kill()
    return Launched(
        codes=codes,
        said=_said(folder),
        printed="".join((folder / f"agent-{node}.log").read_text() for node in range(nodes)),
        folder=folder,
    )


def _started(command: list[str], environ: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, env=environ, stdout=file, stderr=subprocess.STDOUT)


def _said(folder: Path) -> dict[int, list[dict[str, Any]]]:
    files = {int(path.stem.removeprefix("rank-")): path for path in folder.glob("rank-*.jsonl")}
    return {rank: [json.loads(line) for line in path.read_text().splitlines()] for rank, path in files.items()}
