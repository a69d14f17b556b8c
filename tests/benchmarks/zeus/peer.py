"""Zeus' own server in an environment of its own, on our MariaDB, under the load that our worker gets."""

import asyncio
import json
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.journeys import Driven, one_after_the_other
from tests.benchmarks.machine import Stopwatch

HERE = Path(__file__).parent
ENVIRONMENT = Path(".cache/zeus")


def python() -> Path:
    """The interpreter of the environment, which is made if it is missing. Raises SubprocessError."""
    wanted = (HERE / "requirements.txt").read_text()
    made = ENVIRONMENT / "requirements.txt"
    found = ENVIRONMENT / "bin" / "python"
    if not made.exists() or made.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        install: list[str | Path] = [
            found,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "-r",
            HERE / "requirements.txt",
        ]
        subprocess.run(install, check=True, capture_output=True, timeout=600)
        made.write_text(wanted)
    return found


@dataclass(kw_only=True)
class _Lane:
    """A running trial."""

    trial: dict[str, Any]
    epoch: int = 0

    def report(self) -> bytes:
        """The next epoch's report, which lets the training go on and writes nothing."""
        self.epoch += 1
        numbers = {"time": self.epoch * 60.0, "energy": self.epoch * 15_000.0, "metric": 0.5}
        return _request("POST", "/report", {**self.trial, **numbers, "current_epoch": self.epoch})


class ZeusJourneys:
    """Sends reports over its wire, each lane on a connection of its own that is kept. ``pids``: what it costs CPU."""

    def __init__(self, port: int, pids: dict[str, list[int]]) -> None:
        self._port = port
        self._pids = pids
        self._lanes: list[_Lane] = []
        self._wires: list[_Wire] = []

    async def open(self, count: int, *, jobs: int) -> None:
        """Begin so many trials, spread over so many new jobs."""
        names = [f"bench-{uuid.uuid4().hex[:12]}" for _ in range(jobs)]
        self._wires = [await _Wire.to(self._port) for _ in range(count)]
        for job_id in names:
            spec = {
                "job_id": job_id,
                "job_id_prefix": "bench",
                "batch_sizes": [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
                "default_batch_size": 64,
                "target_metric": 0.9,
                "max_epochs": 10**9,
                "max_power": 300.0,
                "number_of_gpus": 1,
                "gpu_model": "A40",
            }
            await self._wires[0].ask(_request("POST", "/jobs", spec))
        for number in range(count):
            job_id = names[number % jobs]
            trial = await self._wires[0].ask(_request("GET", f"/jobs/batch_size?job_id={job_id}", None))
            self._lanes.append(_Lane(trial=json.loads(trial)))

    async def close(self) -> None:
        """Disconnect."""
        for wire in self._wires:
            wire.close()

    async def drive(self, in_flight: int, calls: int) -> Driven:
        """Send reports on so many lanes at once, on each one after the other; so many in all."""
        lanes = self._lanes[:in_flight]
        messages = [[lane.report() for _ in range(max(1, calls // in_flight))] for lane in lanes]
        with Stopwatch(**self._pids) as watch:
            lanes_and_wires = zip(messages, self._wires, strict=False)
            found = await asyncio.gather(*(one_after_the_other(lane, wire.ask) for lane, wire in lanes_and_wires))
        latencies_s, replies = zip(*(one for lane in found for one in lane), strict=True)
        assert not any(json.loads(reply)["stop_train"] for reply in replies)
        return Driven(elapsed=watch.include_others(), latencies_s=latencies_s, replies=replies)


@dataclass(kw_only=True)
class _Wire:
    """One HTTP/1.1 connection that is kept, without a library's cost: it is the server that is measured."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def to(cls, port: int) -> "_Wire":
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader=reader, writer=writer)

    async def ask(self, request: bytes) -> bytes:
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        body = await self.reader.readexactly(length)
        assert head.startswith(("http/1.1 200", "http/1.1 201")), (head, body)
        return body

    def close(self) -> None:
        self.writer.close()


def _request(method: str, path: str, content: dict[str, Any] | None) -> bytes:
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
