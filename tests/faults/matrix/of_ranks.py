"""Faults of data-parallel trainings, each of two ranks under torchrun: killed, frozen, cut off from the broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from tests.faults.matrix.scenario import UNTOUCHED, scenario
from tests.faults.matrix.stage import Stage, Training
from tests.servers import eventually_async

_RANKS = (0, 1)
_ROOT = Path(__file__).parents[3]
_SCRIPT = Path(__file__).with_name("ranks_script.py")
_FOREIGN = ("BSO_", "PET_", "TORCHELASTIC_", "SLURM_", "WORLD_SIZE", "RANK", "LOCAL_")
_PATIENCE_S = 150.0


@dataclass(kw_only=True)
class RankedTraining(Training):
    """A data-parallel training: its ``process`` is torchrun, its ``journal`` that of rank 0.

    Where it is elastic, torchrun launches it again after a rank is lost; else torchrun ends.
    """

    is_elastic: bool

    @property
    def folder(self) -> Path:
        """Where its ranks write."""
        return self.journal.parent

    def noted(self, rank: int, did: str) -> list[dict[str, Any]]:
        """What a rank has noted of one kind, in order."""
        journal = self.folder / f"rank-{rank}.jsonl"
        lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
        facts = [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be cut off
        return [fact for fact in facts if fact["did"] == did]

    @property
    @override
    def output(self) -> str:
        """What its ranks have printed; torchrun itself ends with a traceback."""
        logs = sorted(self.folder.glob("logs/**/std*.log"))
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)

    @override
    def ask_to_end(self) -> None:
        (self.folder / "over").touch()

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank of the last launch."""
        os.kill(int(self.noted(rank, "started")[-1]["pid"]), number)


@dataclass(kw_only=True)
class RankStage(Stage):
    """Workers, lanes, and in the place of trainings of one process data-parallel ones."""

    @property
    def ranked(self) -> list[RankedTraining]:
        """The data-parallel trainings."""
        return [training for training in self.trainings if isinstance(training, RankedTraining)]

    async def begin_ranked(self, *, elastic: int = 0, plain: int = 0, trainings_url: str | None = None) -> None:
        """Begin, and wait until so many trainings that torchrun launches again, and others, get on."""
        await self.begin(trainings=0, trainings_url=trainings_url)
        for number in range(elastic + plain):
            folder = self.folder / f"ranks-{number}"
            folder.mkdir()
            job_id = f"training-{self.rng.getrandbits(32):08x}"
            self.launch(folder, job_id, is_elastic=number < elastic)
        await self.all_go_on()

    def launch(self, folder: Path, job_id: str, *, is_elastic: bool) -> None:
        """Start a training in a folder, which may hold the checkpoint of one that has ended."""
        environ = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
        environ |= {"BSO_URL": self.trainings_url, "BSO_ENERGY": "assumed", "STORY_FOLDER": str(folder)}
        environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval", "0.1"]
        command += ["--redirects", "3", "--log-dir", str(folder / "logs")]
        command += ["--nproc-per-node", str(len(_RANKS)), "--max-restarts", "1000" if is_elastic else "0"]
        with (folder / "torchrun.log").open("ab") as log:
            process = subprocess.Popen([*command, str(_SCRIPT), job_id], stdout=log, stderr=log, env=environ)
        self.trainings.append(
            RankedTraining(
                job_id=job_id,
                journal=folder / "rank-0.jsonl",
                state_dir=folder / "state",
                process=process,
                is_elastic=is_elastic,
            )
        )

    async def lose(self, training: RankedTraining, rank: int) -> None:
        """SIGKILL a rank, and wait for the next launch; where torchrun begins none, start it."""
        before = [len(training.noted(each, "started")) for each in _RANKS]
        training.signal(rank, signal.SIGKILL)
        if not training.is_elastic:
            await asyncio.to_thread(training.process.wait, _PATIENCE_S)
            self.trainings.remove(training)
            self.launch(training.folder, training.job_id, is_elastic=False)
        await eventually_async(
            lambda: all(len(training.noted(each, "started")) > before[each] for each in _RANKS),
            timeout_s=_PATIENCE_S,
            what="the next launch",
        )

    @override
    async def all_go_on(self) -> None:
        """Wait for lanes and workers, and until all ranks of each training have ended one more trial."""
        await super().all_go_on()
        before = [self._ended(training) for training in self.ranked]
        try:
            await eventually_async(
                lambda: all(self._ended(one) > ended for one, ended in zip(self.ranked, before, strict=True)),
                timeout_s=_PATIENCE_S,
                what="an end of a trial of each data-parallel training",
            )
        except AssertionError as error:
            self.surprises.append(f"no recovery: {error}")
        self.figures["recovery_of_ranks_s"] = self.now_s() - self.mended_s if self.mended_s else 0.0

    @staticmethod
    def _ended(training: RankedTraining) -> int:
        return min(len(training.noted(rank, "trial_ended")) for rank in _RANKS)

    @override
    async def end(self) -> None:
        await super().end()
        for training in self.ranked:
            self.surprises += disagreements(training)

    @override
    def end_processes(self) -> None:
        running = [training for training in self.ranked if training.process.poll() is None]
        super().end_processes()
        for training in running:  # killed, torchrun leaves its ranks behind
            for rank in _RANKS:
                with suppress(ProcessLookupError, IndexError):
                    training.signal(rank, signal.SIGKILL)


def rank_scenario(words: str, **options: Any) -> Callable[..., Any]:
    """Register a function as a scenario of data-parallel trainings."""
    return scenario(words, stage=RankStage, needs_module="torch", promises=UNTOUCHED, **options)


@rank_scenario(
    "SIGKILL of a rank, twice in each of two trainings: one restarts elastically, the other is started again"
)
async def ranks_killed(stage: RankStage) -> None:
    await stage.begin_ranked(elastic=1, plain=1)
    async with stage.fault():
        for _ in range(2):
            await stage.pause(0.5, 4.0)
            await asyncio.gather(*(stage.lose(one, stage.rng.choice(_RANKS)) for one in stage.ranked))


@rank_scenario(
    "SIGSTOP of rank 0 of one training for 10 s, of another for 28 s: longer than the 20 s that others wait for it",
    group="files",
)
async def rank_0_frozen(stage: RankStage) -> None:
    await stage.begin_ranked(elastic=2)

    async def freeze(training: RankedTraining, seconds: float) -> None:
        training.signal(0, signal.SIGSTOP)
        await stage.pause(seconds)
        with suppress(ProcessLookupError):  # torchrun may have killed it by then
            training.signal(0, signal.SIGCONT)

    async with stage.fault():
        await asyncio.gather(*(freeze(one, seconds) for one, seconds in zip(stage.ranked, (10.0, 28.0), strict=True)))
        await stage.pause(2.0)
    await stage.all_go_on()
    launches = len(stage.ranked[0].noted(0, "started"))
    if launches != 1:
        stage.surprises.append(f"10 s without rank 0 have cost its training a rank: {launches} launches")


@rank_scenario("the connections of data-parallel trainings to the broker are cut for 20 s")
async def ranks_cut_off(stage: RankStage) -> None:
    proxy = await stage.proxied(stage.amqp_url)
    await stage.begin_ranked(elastic=2, trainings_url=proxy.url)
    await stage.suffer(proxy.cut, 20.0, proxy.restore)
    lost = [fact["error"] for one in stage.ranked for rank in _RANKS for fact in one.noted(rank, "lost_a_rank")]
    stage.surprises += [f"an outage of the broker has cost a training a rank: {error}" for error in lost]


def disagreements(training: RankedTraining) -> list[str]:
    """Where the ranks of a launch saw different costs of an epoch, or different ends of a trial."""
    seen: dict[tuple[object, ...], set[tuple[object, ...]]] = defaultdict(set)
    for rank in _RANKS:
        for fact in training.noted(rank, "evaluated"):
            seen[*_trial_of(fact), fact["epoch"]].add((fact["cost"],))
        for fact in training.noted(rank, "trial_ended"):
            seen[_trial_of(fact)].add((fact["outcome"], fact["reason"]))
    return [
        f"ranks disagree about {what}: {alternatives}" for what, alternatives in seen.items() if len(alternatives) > 1
    ]


def _trial_of(fact: dict[str, Any]) -> tuple[object, ...]:
    return fact["launch"], fact["night"], fact["attempt"]
