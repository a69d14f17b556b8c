"""A real browser, and pages over a SQLite file in which real trainings have left their mark."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from bso.domain.commands import BeginTrial, RegisterJob, Request
from bso.domain.hardware import EnergyMethod, HardwareKind
from bso.domain.replies import Problem
from bso_client.transports.embedded import open_embedded
from tests.servers import eventually

HOSTILE = """<script>alert("1")</script><img src=x onerror=alert(1)>"""
PICTURES = Path(__file__).parents[2] / "build" / "pages"
SCRIPT = Path(__file__).with_name("training_script.py")
# Else Chromium asks hosts of its makers, at each start.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
QUIET += ["--disable-background-networking", "--disable-component-update"]

Theme = Literal["light", "dark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """``bso dashboard`` as a process, over the file in a state directory."""

    state_dir: Path
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def addresses(self) -> list[str]:
        """The addresses that it has printed so far, each for one browser."""
        return re.findall(r"http://\S+", self.log.read_text(encoding="utf-8"))

    @property
    def host(self) -> str:
        """Where it listens."""
        return self.addresses[0].partition("/ui")[0]

    def train(self, job_id: str, *, recurrences: int, waits_for: Path | None = None) -> "subprocess.Popen[bytes]":
        """A training process; with ``waits_for`` it trains the second epoch when that file is there."""
        environ = os.environ | {"BSO_STATE_DIR": str(self.state_dir), "BSO_ENERGY": "assumed"}
        words = [sys.executable, str(SCRIPT), job_id, str(recurrences), *([str(waits_for)] if waits_for else [])]
        return subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@dataclass(slots=True)
class Visit:
    """A window in which the pages are open, and what the browser complained of."""

    page: Page
    host: str
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def go(self, path: str) -> Page:
        """Open a page."""
        self.page.goto(self.host + path)
        return self.page

    def note(self, url: str) -> None:
        """Remember which host is asked."""
        self.hosts.add(url.partition("://")[2].partition("/")[0])


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium."""
    path = shutil.which("chromium")
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "chromium is not installed: tools/install-servers browser"
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Pages about two jobs: one has found its batch size, the other has a hostile name for its hardware."""
    folder = tmp_path_factory.mktemp("dashboard")
    state_dir, log = folder / "state", folder / "dashboard.log"
    environ = os.environ | {"BSO_STATE_DIR": str(state_dir)}
    with log.open("wb") as stream:
        program = [sys.executable, "-m", "bso_cli", "dashboard", "--no-open"]
        process = subprocess.Popen(program, env=environ, stdout=stream, stderr=stream)
    dashboard = Dashboard(state_dir=state_dir, log=log, process=process)
    try:
        eventually(lambda: bool(dashboard.addresses), what="an address")
        training = dashboard.train("vision-digits", recurrences=12)
        assert training.wait() == 0
        address = f"sqlite:///{state_dir / 'bso.sqlite'}"
        with ThreadPoolExecutor(1) as thread:  # Playwright has an event loop in this one
            thread.submit(asyncio.run, _begin_on_hostile_hardware(address)).result()
        yield dashboard
    finally:
        process.terminate()
        assert process.wait() == 0


async def _begin_on_hostile_hardware(url: str) -> None:
    hardware = HardwareKind(gpu_model=HOSTILE, max_power_w=300.0, energy_method=EnergyMethod.NVML_COUNTER)
    sizes = {"batch_sizes": [32, 64], "default_batch_size": 32, "target_metric": 0.9}
    embedded = await open_embedded(url)
    try:
        for command in (RegisterJob(spec=sizes), BeginTrial(hardware=hardware, recurrence_id="one")):
            asked = Request(command_id=str(uuid.uuid4()), job_id="hostile", command=command)
            (answer,) = await embedded.execute([asked])
            assert not isinstance(answer.reply, Problem), answer.reply
    finally:
        await embedded.close()


@pytest.fixture
def visit(browser: Browser, dashboard: Dashboard) -> Iterator[Callable[[Theme], Visit]]:
    """Opens windows, in one theme each."""
    contexts: list[BrowserContext] = []

    def open_window(theme: Theme = "light") -> Visit:
        context = browser.new_context(color_scheme=theme, viewport={"width": 1400, "height": 900}, bypass_csp=False)
        contexts.append(context)
        visited = Visit(context.new_page(), dashboard.host)
        visited.page.on("console", lambda message: visited.complaints.append(message.text))
        visited.page.on("pageerror", lambda error: visited.complaints.append(str(error)))
        visited.page.on("dialog", lambda dialog: visited.complaints.append(f"dialog: {dialog.message}"))
        visited.page.on("request", lambda request: visited.note(request.url))
        before = len(dashboard.addresses)
        visited.page.goto(dashboard.addresses[-1])
        visited.page.wait_for_url("**/ui")
        eventually(lambda: len(dashboard.addresses) > before, what="the address for the next browser")
        return visited

    yield open_window
    for context in contexts:
        context.close()
