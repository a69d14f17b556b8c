"""What the pages of a large fleet cost a browser: ``python -m tests.benchmarks.pages``.

Prints one JSON object: seconds until the first rows are visible (median of 5, warm), the longest task of the main
thread in a minute of use, and the elements and bytes of each page.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.benchmarks.pages.fleet import begin_live, make_fleet, report_live
from tests.browser.conftest import QUIET
from tests.servers import eventually

_VISITS, _USED_S, _REPORTS = 5, 60.0, 15
_SHOWS = "words => document.querySelector('p.running')?.textContent.includes(words)"
_BYTES = """
["navigation", "resource"].flatMap(kind => performance.getEntriesByType(kind))
  .reduce((sum, one) => sum + one.decodedBodySize, 0)
"""
_WATCH = """
window.longest = 0;
new PerformanceObserver(list => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });
"""


def measured(file: Path) -> dict[str, Any]:
    """The figures of the fleet in a file."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is not installed: tools/install-servers browser"
    with tempfile.TemporaryFile("w+") as log, sync_playwright() as playwright:
        program = [sys.executable, "-m", "bso_cli", "dashboard", "--no-open", "--url", f"sqlite:///{file.absolute()}"]
        process = subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
        try:
            eventually(lambda: bool(_addresses(log.fileno())), what="an address")
            browser = playwright.chromium.launch(executable_path=chromium, args=QUIET)
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.add_init_script(_WATCH)
            address = _addresses(log.fileno())[0]
            page.goto(address)
            host = address.partition("/ui")[0]
            found = _of_pages(page, host) | {"report_shown_s": _moves(page, host, file)}
            browser.close()
            return found
        finally:
            process.terminate()
            process.wait()


def _addresses(descriptor: int) -> list[str]:
    return re.findall(r"http://\S+", os.pread(descriptor, 100_000, 0).decode())


def _of_pages(page: Page, host: str) -> dict[str, Any]:
    page.wait_for_url("**/ui")
    fleet = page.locator('[aria-label="Jobs"] tbody tr')
    began_s = time.perf_counter()
    eventually(lambda: "Being read" not in page.content(), what="all jobs")
    complete_s = time.perf_counter() - began_s
    paths = {"jobs": f"{host}/ui", "sorted": f"{host}/ui?sort=-saved", "savings": f"{host}/ui/savings"}
    fleet.first.wait_for()
    job = host + (fleet.first.locator("th a").get_attribute("href") or "")
    paths |= {"job": job, "trial": f"{job}/trials/50"}
    pages = {name: _of_page(page, path) for name, path in paths.items()}
    return {"all_jobs_read_s": complete_s, "pages": pages, "longest_task_ms": _longest_in_use(page, paths)}


def _of_page(page: Page, path: str) -> dict[str, float]:
    visible_s: list[float] = []
    for _ in range(_VISITS):
        began_s = time.perf_counter()
        page.goto(path, wait_until="commit")
        page.locator("main tbody tr").first.wait_for()
        visible_s.append(time.perf_counter() - began_s)
        page.wait_for_load_state("load")
    return {
        "first_rows_s": statistics.median(visible_s),
        "elements": page.evaluate("document.querySelectorAll('*').length"),
        "bytes": page.evaluate(_BYTES),
    }


def _moves(page: Page, host: str, file: Path) -> dict[str, float]:
    """How long after its reply a report of a running trial is on the page of its job."""
    job_id, took_s = "live-job", list[float]()
    with ThreadPoolExecutor(1) as thread:  # Playwright has an event loop in this one
        begun = thread.submit(asyncio.run, begin_live(file, job_id)).result()
        page.goto(f"{host}/ui/jobs/{job_id}")
        page.get_by_text("live", exact=True).wait_for()
        for epoch in range(1, _REPORTS + 1):
            page.wait_for_timeout(1000 + 37 * epoch)
            replied_s = thread.submit(asyncio.run, report_live(file, job_id, begun, epoch)).result()
            page.wait_for_function(_SHOWS, arg=f"epoch {epoch},")
            took_s.append(time.perf_counter() - replied_s)
    return {"median": statistics.median(took_s), "largest": max(took_s)}


def _longest_in_use(page: Page, paths: dict[str, str]) -> float:
    """The longest task of the main thread while somebody goes from page to page and scrolls, for a minute."""
    longest, until_s = 0.0, time.perf_counter() + _USED_S
    while time.perf_counter() < until_s:
        for path in paths.values():
            page.goto(path)
            for _ in range(10):
                page.mouse.wheel(0, 400)
                page.wait_for_timeout(200)
            longest = max(longest, page.evaluate("window.longest"))
    return longest


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, help="a SQLite file; it is made where it is missing, and kept")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=100, help="of each job")
    parser.add_argument("--running", type=int, default=200, help="trials that run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = given.file or Path(folder) / "bso.sqlite"
        if not file.exists():
            made = make_fleet(file, jobs=given.jobs, trials=given.trials, running=given.running, seed=given.seed)
            asyncio.run(made)
        words = json.dumps(measured(file), indent=1)
    if given.output is not None:
        given.output.write_text(words + "\n", encoding="utf-8")
    sys.stdout.write(f"{words}\n")


if __name__ == "__main__":
    _main()
