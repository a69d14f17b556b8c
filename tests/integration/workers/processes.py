"""Workers as processes of their own, seen from outside: their logs, their health pages, and signals."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.servers import PATIENCE_S, eventually

MODULE = ("-m", "bso_workers")


class WorkerProcess:
    """One worker process; its log lies in a file."""

    def __init__(
        self,
        log: Path,
        environ: Mapping[str, str],
        *,
        program: Sequence[str] = MODULE,
        interpreter: str = sys.executable,
    ) -> None:
        self.log = log
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("BSO_")}
        with log.open("wb") as stream:
            self.process = subprocess.Popen(  # the test's cleaning ends it
                [interpreter, *program], stdout=stream, stderr=stream, env={**inherited, **environ}
            )

    def lines(self, action: str | None = None) -> list[dict[str, Any]]:
        """What it has logged, all or with one action."""
        return [line for line in self._parsed() if action is None or line.get("action") == action]

    def _parsed(self) -> Iterator[dict[str, Any]]:
        for text in self.log.read_text(encoding="utf-8").splitlines():
            if text.startswith("{") and text.endswith("}"):
                yield json.loads(text)

    def started(self) -> "WorkerProcess":
        """Wait until its health pages are there."""
        self.logged("started")
        return self

    def ready(self) -> "WorkerProcess":
        """Wait until it takes commands."""
        self.until(lambda: self.page("readyz")[0] == 200)
        return self

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition while it lives; when it fails to come true, show the log."""
        try:
            eventually(lambda: self._living() and condition())
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def logged(self, action: str) -> list[dict[str, Any]]:
        """Wait until it has logged an action."""
        self.until(lambda: self.lines(action))
        return self.lines(action)

    def page(self, name: str, *, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
        """The status and the text of a health page; 0 where nobody answers."""
        started = self.lines("started")
        if not started:
            return 0, ""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{started[0]['port']}/{name}", timeout=timeout_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def reasons(self) -> dict[str, str]:
        """Why it is not ready."""
        found: dict[str, str] = json.loads(self.page("readyz")[1] or '{"reasons": {}}')["reasons"]
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all labels that are not given."""
        wanted = [f'{key}="{text}"' for key, text in labels.items()]
        lines = [line for line in self.page("metrics")[1].splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(word in line for word in wanted))

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        """Drain it, or kill it."""
        if self.process.poll() is not None:
            return
        self.terminate()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def text(self) -> str:
        """The end of its log, for messages."""
        return f"{self.log.name}: ...{self.log.read_text(encoding='utf-8')[-2000:]}"

    def _living(self) -> bool:
        assert self.process.poll() is None, f"the worker ended with {self.process.returncode}: {self.text()}"
        return True
