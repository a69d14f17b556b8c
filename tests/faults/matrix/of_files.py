"""Faults of trainings that share a job file, without servers: killed, locked out, no disk left, no file left."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from typing_extensions import override

from bso.storage import open_store
from bso_migrations import upgrade
from tests.faults.matrix.scenario import scenario
from tests.faults.matrix.stage import Stage, Training
from tests.servers import eventually_async

_SMALL_DISK_BYTES = 20_000_000
_PATIENCE_S = 60.0


@dataclass(kw_only=True)
class FileStage(Stage):
    """Two jobs in one file, with two trainings each. There are no lanes: all that happens is what trainings note."""

    has_servers = False

    @override
    async def __aenter__(self) -> Self:
        (self.folder / "disk").mkdir()
        self.database_url = self.trainings_url = f"sqlite:///{self.file}"
        return self

    @override
    async def __aexit__(self, *_: object) -> None:
        self.end_processes()
        await self._cleaning.aclose()

    def enter(self, context: AbstractContextManager[None]) -> None:
        """Keep a context until the scenario is over."""
        self._cleaning.enter_context(context)

    @property
    def file(self) -> Path:
        """The job file."""
        return self.folder / "disk" / "jobs.sqlite"

    @override
    async def begin(self, **_: Any) -> None:
        await upgrade(self.database_url)
        self.open_store()
        self._cleaning.push_async_callback(self.close_store)
        for _job in range(2):
            self.train()
            self.train(like=self.trainings[-1])
        await self.all_go_on()

    def open_store(self) -> None:
        """Open the file for the audit."""
        self.store = open_store(self.database_url, has_outbox=False)

    async def close_store(self) -> None:
        """Close it."""
        await self.store.close()

    @override
    async def all_go_on(self) -> None:
        """Wait until each training that runs has ended a trial that it began or went on with since now."""
        since_s = time.monotonic()

        def is_there() -> bool:
            return all(_ended_since(one, since_s) for one in self.trainings if one.process.poll() is None)

        try:
            await eventually_async(is_there, timeout_s=_PATIENCE_S, what="an end of a trial of each training")
        except AssertionError as error:
            self.surprises.append(f"no recovery: {error}")
        self.recovered_s = self.harmed_recovered_s = self.trainings_recovered_s = self.now_s()

    @override
    async def database_version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    @override
    async def progress(self, answers: int, *, is_others: bool | None = None) -> None:
        before = self._noted()
        await eventually_async(
            lambda: self._noted() >= before + answers, timeout_s=_PATIENCE_S, what="more evaluations"
        )

    def _noted(self) -> int:
        return sum(len(training.facts) for training in self.trainings)


def file_scenario(words: str, **options: Any) -> Callable[..., Any]:
    """Register a function as a scenario of trainings that share a file."""
    return scenario(words, stage=FileStage, promises={"recovery_s": 30.0}, group="files", **options)


@file_scenario("four trainings of two jobs share a job file, and nothing goes wrong")
async def file_shared(stage: FileStage) -> None:
    await stage.begin()
    async with stage.fault():
        await stage.progress(400)


@file_scenario("SIGKILL of trainings that share a job file, 14 times; others take their place")
async def file_writers_killed(stage: FileStage) -> None:
    await stage.begin()
    async with stage.fault():
        for _ in range(14):
            await stage.pause(0.2, 1.0)
            victim = stage.rng.choice([one for one in stage.trainings if one.process.poll() is None])
            victim.process.kill()
            stage.train(like=victim)


@file_scenario("somebody else holds the lock of the job file for 20 s")
async def file_locked(stage: FileStage) -> None:
    await stage.begin()
    async with stage.fault():
        foreign = sqlite3.connect(stage.file, isolation_level=None, timeout=30.0)
        try:
            foreign.execute("BEGIN IMMEDIATE")  # nobody else can write then
            seen = await stage.highest_event_id()
            await stage.pause(20.0)
            assert await stage.highest_event_id() == seen, "the fault did not strike"
            foreign.execute("ROLLBACK")
        finally:
            foreign.close()


@file_scenario("the disk of the job file is full for 15 s")
async def file_disk_full(stage: FileStage) -> None:
    stage.enter(_small_disk(stage.file.parent))
    await stage.begin()
    filling = stage.file.with_name("filling")
    async with stage.fault():
        with filling.open("wb") as file, suppress(OSError):
            while True:
                os.write(file.fileno(), bytes(4096))
        await stage.pause(7.0)
        seen = await stage.highest_event_id()
        await stage.pause(8.0)
        assert await stage.highest_event_id() == seen, "the fault did not strike"
        filling.unlink()


@file_scenario("the job file is deleted under running trainings: what it held is forgotten, and a new one begins")
async def file_deleted(stage: FileStage) -> None:
    await stage.begin()
    async with stage.fault():
        await _deleted(stage)


@file_scenario("the job file is overwritten with something else for 10 s, and then deleted: a new one begins")
async def file_overwritten(stage: FileStage) -> None:
    await stage.begin()
    async with stage.fault():
        with stage.file.open("r+b") as file:
            file.write(stage.rng.randbytes(stage.file.stat().st_size))
        await stage.pause(10.0)
        await _deleted(stage)


@file_scenario("the job file is emptied, and deleted 10 s later: a new one begins")
async def file_emptied(stage: FileStage) -> None:
    await stage.begin()
    async with stage.fault():
        os.truncate(stage.file, 0)
        await stage.pause(10.0)
        await _deleted(stage)


async def _deleted(stage: FileStage) -> None:
    """Delete the job file, and wait until every training uses the new one."""
    for name in filter(Path.is_file, stage.file.parent.glob("jobs.sqlite*")):
        name.unlink()
    await eventually_async(stage.file.exists, timeout_s=_PATIENCE_S, what="a new job file")
    await eventually_async(
        lambda: not any(map(_holds_deleted, stage.trainings)), timeout_s=_PATIENCE_S, what="only the new job file"
    )
    await stage.close_store()
    stage.open_store()
    stage.forgotten_until_s = time.monotonic()


def _holds_deleted(training: Training) -> bool:
    with suppress(OSError):
        open_files = Path(f"/proc/{training.process.pid}/fd").iterdir()
        return any(str(file.readlink()).endswith("jobs.sqlite (deleted)") for file in open_files)
    return False


def _ended_since(training: Training, since_s: float) -> bool:
    return any(fact["did"] == "trial_ended" and float(str(fact["at_s"])) > since_s for fact in training.facts)


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A disk in memory; needs root."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK_BYTES}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
