"""The pages in a real browser: what people see and do there, in both themes, with a keyboard, while trainings run."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import aio_pika
import aio_pika.abc
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from bso_broker.connection import login_of
from bso_broker.topology import COMMAND_KEY, COMMANDS, DEAD_LETTERS
from bso_migrations import upgrade
from tests.browser.conftest import HOSTILE, PICTURES, Dashboard, Theme, Visit
from tests.integration.gateway.conftest import Gateway, gateway_process
from tests.integration.workers.processes import WorkerProcess
from tests.servers import eventually, eventually_async
from tools.private_servers import MariaDB, RabbitMQ

PAGES = {
    "jobs": "/ui",
    "savings": "/ui/savings",
    "operation": "/ui/operation",
    "job": "/ui/jobs/vision-digits",
    "trial": "/ui/jobs/vision-digits/trials/3",
    "what-if": "/ui/jobs/vision-digits/what-if?eta=0.2",
    "deleting": "/ui/jobs/vision-digits/actions/delete",
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
    expected = 1 if path == PAGES["no-such-job"] else 0  # that the page is not there
    assert len(visited.complaints) == expected, visited.complaints
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
    jobs = visited.go("/ui?contains=moving")
    running = jobs.get_by_role("region", name="Running trials")
    expect(running).to_contain_text("moving", timeout=PATIENCE_MS)
    page = visited.go("/ui/jobs/moving")
    expect(page.locator("#live")).to_have_text("live", timeout=PATIENCE_MS)
    expect(page.locator("p.running")).to_contain_text("epoch 1,")
    page.evaluate("window.isTheSamePage = true")
    goes_on.touch()
    expect(page.locator("#log")).to_contain_text("ended as converged", timeout=PATIENCE_MS)
    expect(page.locator("p.running")).to_have_count(0)
    assert page.evaluate("window.isTheSamePage")
    assert training.wait() == 0
    assert visited.complaints == []


def test_the_jobs_are_reached_with_the_keyboard_alone(visit: OpenWindow) -> None:
    page = visit().go("/ui")
    page.keyboard.press("Tab")
    expect(page.get_by_text("To the content")).to_be_focused()
    for _ in range(40):
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


def test_a_job_is_found_by_a_part_of_its_name(visit: OpenWindow) -> None:
    page = visit().go("/ui")
    page.get_by_label("Jobs whose name contains").fill("digits")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("region", name="Jobs").locator("tbody tr")).to_have_count(1)


def test_jobs_are_sorted_by_a_click(visit: OpenWindow) -> None:
    page = visit().go("/ui")
    jobs = page.get_by_role("region", name="Jobs")
    for direction, first in (("descending", "vision-digits"), ("ascending", "hostile")):
        jobs.get_by_role("link", name="Trials").click()
        expect(jobs.get_by_role("columnheader", name="Trials")).to_have_attribute("aria-sort", direction)
        expect(jobs.locator("tbody tr th").first).to_have_text(first)


def test_another_policy_is_simulated_and_its_costs_are_compared(visit: OpenWindow) -> None:
    visited = visit()
    page = visited.go("/ui/jobs/vision-digits")
    page.get_by_role("link", name="What if it had another policy or eta?").click()
    page.get_by_label("Policy").select_option("pruning_thompson")
    page.get_by_role("button", name="Simulate").click()
    answer = page.get_by_role("region", name="What each alternative costs")
    expect(answer).to_contain_text("policy pruning_thompson", timeout=PATIENCE_MS)
    expect(answer.locator("tbody tr")).to_have_count(2)
    assert visited.complaints == []


def test_a_job_is_deleted_when_its_operator_confirms_it(visit: OpenWindow, dashboard: Dashboard) -> None:
    assert dashboard.train("doomed", recurrences=1).wait() == 0
    visited = visit()
    page = visited.go("/ui/jobs/doomed")
    page.get_by_role("link", name="Delete this job").click()
    page.get_by_role("link", name="No, go back").click()
    expect(page.locator("h1")).to_have_text("doomed")
    page.get_by_role("link", name="Delete this job").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.locator("h1")).to_have_text("Jobs")
    expect(page.get_by_role("link", name="doomed")).to_have_count(0)
    assert visited.complaints == []


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
    expect(page.locator("#log")).to_contain_text("recurrence-13 ended with the model", timeout=PATIENCE_MS)
    expect(page.locator("#live")).to_have_text("live", timeout=PATIENCE_MS)


def test_the_focus_stays_where_it_was_when_a_page_moves(visit: OpenWindow, dashboard: Dashboard) -> None:
    visited = visit()
    page = visited.go("/ui/jobs/vision-digits")
    expect(page.locator("#live")).to_have_text("live", timeout=PATIENCE_MS)
    link = page.locator("table a[href$='/trials/3']")
    link.focus()
    before = page.locator("#log li").first.text_content()
    dashboard.train("vision-digits", recurrences=1).wait()
    expect(page.locator("#log li").first).not_to_have_text(before or "", timeout=PATIENCE_MS)
    expect(link).to_be_focused()


def test_a_reader_logs_in_with_a_token_and_out_again(browser: Browser, tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path / 'bso.sqlite'}", tmp_path / "gateway.log"
    with Gateway(gateway_process(log, url, tokens=True)) as gateway, new_page(browser) as page:
        page.goto(f"{gateway.url}/ui/jobs/nobody-knows")
        page.get_by_label("Your token").fill(_token(url, "read"))
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("nobody-knows is not registered")
        page.get_by_role("link", name="All jobs").click()
        expect(page.locator("h1")).to_have_text("Jobs")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Your token")).to_be_visible()
        page.goto(f"{gateway.url}/ui")
        expect(page.get_by_label("Your token")).to_be_visible()


def test_an_open_page_goes_to_the_form_for_a_token_when_its_own_is_revoked(browser: Browser, tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path / 'bso.sqlite'}", tmp_path / "gateway.log"
    with Gateway(gateway_process(log, url, tokens=True)) as gateway, new_page(browser) as page:
        token = _token(url, "read")
        page.goto(f"{gateway.url}/ui?sort=job&contains=vision")
        page.get_by_label("Your token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_have_text("Jobs")
        assert page.url.endswith("/ui?sort=job&contains=vision")
        _bso(url, "tokens", "revoke", token.split("_")[1])
        expect(page.get_by_label("Your token")).to_be_visible(timeout=3 * PATIENCE_MS)  # known for 30 s
        page.get_by_label("Your token").fill(_token(url, "read"))
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_have_text("Jobs")


def test_who_may_only_read_is_offered_no_action_and_refused_one(browser: Browser, tmp_path: Path) -> None:
    url, log = f"sqlite:///{tmp_path / 'bso.sqlite'}", tmp_path / "gateway.log"
    with Gateway(gateway_process(log, url, tokens=True)) as gateway, new_page(browser) as page:
        reader, trainer = (_token(url, right) for right in ("read", "train"))
        spec = {"batch_sizes": [32, 64], "default_batch_size": 64, "target_metric": 0.9}
        headers = {"Authorization": f"Bearer {trainer}", "Content_Type": "application/json"}
        assert gateway.ask("PUT", "/v1/jobs/kept", {"spec": spec}, **headers).status == 201
        page.goto(f"{gateway.url}/ui/jobs/kept")
        page.get_by_label("Your token").fill(reader)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("h1")).to_have_text("kept")
        expect(page.get_by_role("link", name="Delete this job")).to_have_count(0)
        page.goto(f"{gateway.url}/ui/jobs/kept/actions/delete")
        page.get_by_role("button", name="Yes, do it").click()
        expect(page.get_by_role("alert")).to_contain_text("this takes the right to operate")
        page.goto(f"{gateway.url}/ui/operation")
        expect(page.get_by_role("alert")).to_contain_text("this takes the right to operate")
        page.goto(f"{gateway.url}/ui/jobs/kept")
        expect(page.locator("h1")).to_have_text("kept")


def _token(url: str, right: str) -> str:
    token: str = json.loads(_bso(url, "tokens", "create", "ann", "--may", right, "--json"))["token"]
    return token


def _bso(url: str, *arguments: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "bso_cli", *arguments],
        env=os.environ | {"BSO_DATABASE_URL": url},
        capture_output=True,
        check=True,
    )
    return done.stdout


@both_themes
def test_the_form_for_a_token_is_accessible(browser: Browser, tmp_path: Path, theme: Theme) -> None:
    url, log = f"sqlite:///{tmp_path / 'bso.sqlite'}", tmp_path / "gateway.log"
    with Gateway(gateway_process(log, url, tokens=True)) as gateway, new_page(browser, theme=theme) as page:
        page.goto(f"{gateway.url}/ui")
        expect(page.get_by_label("Your token")).to_be_visible()
        found = Axe().run(page, options=WCAG)
        assert found.violations_count == 0, found.generate_report()


@pytest.fixture
def over_a_broker(
    rabbitmq_server: RabbitMQ, mariadb_server: MariaDB, tmp_path: Path
) -> Iterator[tuple[str, WorkerProcess]]:
    """A broker, and a gateway with a worker that knows its login as an operator."""
    amqp_url, database_url = rabbitmq_server.start().create_vhost(), mariadb_server.start().create_database()
    with ThreadPoolExecutor(1) as thread:  # Playwright has an event loop in this one
        thread.submit(asyncio.run, upgrade(database_url)).result()
    login = login_of(amqp_url) or ""
    environ = {"BSO_AMQP_URL": amqp_url, "BSO_DATABASE_URL": database_url, "BSO_HEALTH_PORT": "0"}
    environ |= {"BSO_LOG_FORMAT": "json", "BSO_GATEWAYS": login, "BSO_OPERATORS": login}
    worker = WorkerProcess(tmp_path / "worker.log", environ).ready()
    process = gateway_process(tmp_path / "gateway.log", amqp_url)
    yield amqp_url, process
    process.stop()
    worker.stop()


@both_themes
def test_an_operator_sends_dead_letters_again_and_deletes_them(
    browser: Browser, over_a_broker: tuple[str, WorkerProcess], theme: Theme
) -> None:
    amqp_url, process = over_a_broker
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, publish_nonsense(amqp_url, HOSTILE)).result()
    complaints: list[str] = []
    with new_page(browser, theme=theme) as page:
        page.on("console", lambda message: complaints.append(message.text))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(process.logged("pages")[-1]["url"])
        page.get_by_role("link", name="Operation").click()
        expect(page.get_by_role("region", name="Queues")).to_contain_text("bso.dead-letters")
        page.get_by_role("link", name="Dead letters").click()
        letters = page.get_by_role("region", name="Dead letters")
        expect(letters).to_contain_text(HOSTILE)
        found = Axe().run(page, options=WCAG)
        assert found.violations_count == 0, found.generate_report()
        letters.get_by_role("link", name="Send it again").click()
        page.get_by_role("button", name="Yes, do it").click()
        expect(page.locator("h1")).to_have_text("Dead letters")
        eventually(
            lambda: page.reload() and letters.count() == 1, what="the letter, which a worker has set aside again"
        )
        page.get_by_role("link", name="Delete all of them").click()
        page.get_by_role("button", name="Yes, do it").click()
        expect(page.get_by_text("every command that came could be handled")).to_be_visible()
    assert complaints == []


async def publish_nonsense(amqp_url: str, text: str) -> None:
    """Send what no worker can read, and wait until it is a dead letter."""
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(COMMANDS, ensure=False)
        await exchange.publish(aio_pika.Message(text.encode(), message_id="nonsense", delivery_mode=2), COMMAND_KEY)
        queue = await channel.get_queue(DEAD_LETTERS, ensure=False)
        await eventually_async(lambda: _has_messages(queue), what="a dead letter")


async def _has_messages(queue: aio_pika.abc.AbstractQueue) -> bool:
    message = await queue.get(fail=False)
    if message is not None:
        await message.nack(requeue=True)
    return message is not None


@contextmanager
def new_page(browser: Browser, *, theme: Theme = "light") -> Iterator[Page]:
    """A page in a window of its own, with no session."""
    context = browser.new_context(color_scheme=theme)
    try:
        yield context.new_page()
    finally:
        context.close()
