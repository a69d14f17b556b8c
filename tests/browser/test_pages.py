"""The pages in a real browser: what people see and do there, in both themes, with a keyboard, while trainings run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PICTURES, Dashboard, Theme, Visit
from tests.integration.gateway.conftest import Gateway, gateway_process

PAGES = {
    "jobs": "/ui",
    "job": "/ui/jobs/vision-digits",
    "trial": "/ui/jobs/vision-digits/trials/3",
    "hostile-job": "/ui/jobs/hostile",
    "hostile-trial": "/ui/jobs/hostile/trials/1",
    "no-such-job": "/ui/jobs/nobody-knows",
}
WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}}
PATIENCE_MS = 30_000.0

OpenWindow = Callable[..., Visit]

every_page = pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
both_themes = pytest.mark.parametrize("theme", ["light", "dark"])


@both_themes
@every_page
def test_a_page_complains_of_nothing_and_asks_no_other_host(visit: OpenWindow, path: str, theme: Theme) -> None:
    visited = visit(theme)
    page = visited.go(path)
    expect(page.locator("h1")).to_be_visible()
    page.wait_for_load_state("load")
    name = next(name for name, one in PAGES.items() if one == path)
    page.screenshot(path=PICTURES / f"{name}-{theme}.png")
    refused = [words for words in visited.complaints if "404" not in words]  # of the page that is not there
    assert refused == []
    assert visited.hosts == {visited.host.partition("://")[2]}


@both_themes
@every_page
def test_a_page_is_accessible(visit: OpenWindow, path: str, theme: Theme) -> None:
    """After WCAG 2.2, AA, as far as axe can see it."""
    found = Axe().run(visit(theme).go(path), options=WCAG)
    assert found.violations_count == 0, found.generate_report()


@every_page
def test_on_a_phone_no_page_is_wider_than_the_screen(visit: OpenWindow, path: str) -> None:
    visited = visit()
    visited.page.set_viewport_size({"width": 360, "height": 740})
    page = visited.go(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_every_link_leads_to_a_page(visit: OpenWindow) -> None:
    visited = visit()
    links: set[str] = set()
    for path in PAGES.values():
        found = visited.go(path).eval_on_selector_all(
            "a[href], svg a", "all => all.map(one => one.getAttribute('href'))"
        )
        links |= {one for one in found if one.startswith("/")}
    assert any("/trials/" in one for one in links)
    broken = [one for one in links if visited.page.request.get(visited.host + one).status != 200]
    assert broken == []


def test_a_running_training_moves_the_page(visit: OpenWindow, dashboard: Dashboard, tmp_path: Path) -> None:
    visited, goes_on = visit(), tmp_path / "goes-on"
    training = dashboard.train("moving", recurrences=1, waits_for=goes_on)
    jobs = visited.go("/ui?prefix=moving")
    expect(jobs.locator("tbody")).to_contain_text("running", timeout=PATIENCE_MS)
    page = visited.go("/ui/jobs/moving")
    expect(page.locator("#live")).to_have_text("live", timeout=PATIENCE_MS)
    expect(page.locator("p.running")).to_contain_text("epoch 1,")
    page.evaluate("window.isTheSamePage = true")
    goes_on.touch()
    expect(page.locator(".story")).to_contain_text("ended as converged", timeout=PATIENCE_MS)
    expect(page.locator("p.running")).to_have_count(0)
    assert page.evaluate("window.isTheSamePage")
    assert training.wait() == 0
    assert visited.complaints == []


def test_the_jobs_are_reached_with_the_keyboard_alone(visit: OpenWindow) -> None:
    page = visit().go("/ui")
    page.keyboard.press("Tab")
    expect(page.get_by_text("To the content")).to_be_focused()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "vision-digits":
            break
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("vision-digits")


def test_a_mark_in_a_picture_leads_to_its_trial_and_says_what_it_was(visit: OpenWindow) -> None:
    page = visit().go("/ui/jobs/vision-digits")
    mark = page.locator("figure svg a[href$='/trials/2']").first
    assert "trial 2: batch size" in (mark.text_content() or "")
    mark.click()
    expect(page.locator("h1")).to_have_text("Trial 2 of vision-digits")


def test_a_job_is_found_by_the_beginning_of_its_name(visit: OpenWindow) -> None:
    page = visit().go("/ui")
    page.get_by_label("Jobs whose name begins with").fill("vis")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_browser_without_the_key_sees_nothing(browser: Browser, dashboard: Dashboard, visit: OpenWindow) -> None:
    used = dashboard.addresses[0]
    visit()
    with new_page(browser) as page:
        for address in (used, f"{dashboard.host}/ui/jobs/vision-digits"):
            page.goto(address)
            expect(page.get_by_role("alert")).to_be_visible()
            expect(page.locator("table")).to_have_count(0)


def test_without_a_connection_the_page_says_so_and_goes_on_by_itself(visit: OpenWindow, dashboard: Dashboard) -> None:
    visited = visit()
    page = visited.page
    page.route("**/changes", lambda route: route.abort())
    visited.go("/ui/jobs/vision-digits")
    expect(page.locator("#live")).to_have_text("waiting for the gateway", timeout=PATIENCE_MS)
    dashboard.train("vision-digits", recurrences=1).wait()
    page.unroute("**/changes")
    expect(page.locator(".story")).to_contain_text("recurrence-13 ended with the model", timeout=PATIENCE_MS)
    expect(page.locator("#live")).to_have_text("live", timeout=PATIENCE_MS)


def test_the_focus_stays_where_it_was_when_a_page_moves(visit: OpenWindow, dashboard: Dashboard) -> None:
    visited = visit()
    page = visited.go("/ui/jobs/vision-digits")
    expect(page.locator("#live")).to_have_text("live", timeout=PATIENCE_MS)
    link = page.locator("table a[href$='/trials/3']")
    link.focus()
    before = page.locator(".story li").first.text_content()
    dashboard.train("vision-digits", recurrences=1).wait()
    expect(page.locator(".story li").first).not_to_have_text(before or "", timeout=PATIENCE_MS)
    expect(link).to_be_focused()


def test_a_reader_logs_in_with_a_token_and_out_again(browser: Browser, tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path / 'bso.sqlite'}", tmp_path / "gateway.log"
    with Gateway(gateway_process(log, url, tokens=True)) as gateway, new_page(browser) as page:
        made = subprocess.run(
            [sys.executable, "-m", "bso_cli", "tokens", "create", "ann", "--may", "read", "--json"],
            env=os.environ | {"BSO_DATABASE_URL": url},
            capture_output=True,
            check=True,
        )
        page.goto(f"{gateway.url}/ui/jobs/nobody-knows")
        page.get_by_label("Your token").fill(json.loads(made.stdout)["token"])
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("nobody-knows is not registered")
        page.get_by_role("link", name="All jobs").click()
        expect(page.locator("h1")).to_have_text("Jobs")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Your token")).to_be_visible()
        page.goto(f"{gateway.url}/ui")
        expect(page.get_by_label("Your token")).to_be_visible()


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    """A page in a window of its own, with no session."""
    context = browser.new_context()
    try:
        yield context.new_page()
    finally:
        context.close()
