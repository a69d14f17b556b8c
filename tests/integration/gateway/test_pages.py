"""Pages for people: who may open them, what they show, and that nothing in them is obeyed by a browser."""

import asyncio
import csv
import io
import json
import os
import re
import signal
import threading
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import aio_pika
import pytest

from bso_broker.connection import login_of
from bso_broker.topology import COMMAND_KEY, COMMANDS
from tests.integration.gateway.conftest import SPEC, Answered, Gateway, StartGateway
from tests.integration.gateway.test_tokens import HARDWARE, Guarded, guarded
from tests.integration.workers.fixtures import StartWorker
from tests.servers import eventually

__all__ = ["guarded"]  # a fixture

HOSTILE = """<script>alert("1")</script>&amp;'><img src=x onerror=alert(1)>"""


@dataclass(frozen=True, slots=True)
class Browser:
    """Asks for pages with the cookie of a session."""

    gateway: Gateway
    cookie: str

    def page(self, path: str, **headers: str) -> Answered:
        """A page."""
        return self.gateway.ask("GET", path, Cookie=self.cookie, **headers)


def keys(gateway: Gateway) -> list[str]:
    """The paths, each with a key, that a gateway has logged so far."""
    return [one["url"].removeprefix(gateway.url) for one in gateway.process.logged("pages")]


def opened(gateway: Gateway) -> Browser:
    """A browser in which the address that was logged last has been opened."""
    answer = gateway.ask("GET", keys(gateway)[-1])
    assert (answer.status, onwards(answer)) == (200, "/ui")
    return Browser(gateway, answer.headers["set-cookie"].partition(";")[0])


def log_in(gateway: Gateway, token: str, *, following: str = "") -> Answered:
    """The answer to the form with a token."""
    form = urlencode({"token": token, "next": following}).encode()
    return gateway.ask("POST", "/ui/login", form, Content_Type="application/x-www-form-urlencoded")


def onwards(answer: Answered) -> str:
    """Where a page sends its browser on to."""
    (address,) = re.findall(r'http-equiv="refresh" content="0;url=([^"]*)"', answer.text)
    return unescape(address)


def words(answer: Answered) -> str:
    """What a reader of a page sees, in one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.text.partition("<main")[2])).split())


def trained(gateway: Gateway, epochs: int = 3) -> dict[str, Any]:
    """A trial that has reported and reached its target."""
    gateway.register()
    trial = gateway.begin()
    for epoch in range(1, epochs + 1):
        assert gateway.report(trial, epoch, 0.95 if epoch == epochs else 0.3).status == 200
    gateway.end(trial)
    return trial


def test_the_jobs_a_job_and_a_trial_are_shown_with_their_reasons(start: StartGateway) -> None:
    gateway = start()
    trial = trained(gateway)
    browser = opened(gateway)
    assert gateway.job_id in words(browser.page("/ui"))
    job = words(browser.page(f"/ui/jobs/{gateway.job_id}"))
    assert "target metric at least 0.9 within 10 epochs" in job
    assert "nothing has converged yet; 64 is the default" in job
    assert "ended as converged" in job
    shown = words(browser.page(f"/ui/jobs/{gateway.job_id}/trials/{trial['trial_number']}"))
    assert "Batch size 64 : nothing has converged yet; 64 is the default" in shown
    assert "epoch 2: metric 0.3" in shown


def test_a_job_shows_its_specification_and_what_was_measured_under_power_limits(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    body = {
        "hardware": gateway.ask("GET", f"/v1/jobs/{gateway.job_id}").value["hardware"],
        "measurements": [
            {"power_limit_w": 150.0, "average_power_w": 140.0, "samples_per_s": 700.0},
            {"power_limit_w": 300.0, "average_power_w": 290.0, "samples_per_s": 1000.0},
        ],
    }
    path = f"/v1/jobs/{gateway.job_id}/power-profiles/64"
    assert gateway.ask("PUT", path, body, Content_Type="application/json").status == 200
    shown = words(opened(gateway).page(f"/ui/jobs/{gateway.job_id}"))
    assert "64 300 W 290 W 1000 290 mJ 64 150 W 140 W 700 200 mJ" in shown
    assert "batch_sizes 32, 64, 128" in shown
    assert "max_epochs 10" in shown


def test_what_was_saved_is_shown_with_all_that_was_tried(start: StartGateway) -> None:
    gateway = start()
    trained(gateway)
    gateway.end(gateway.begin())
    browser = opened(gateway)
    # A page does not wait long for the sum, and says how far it is.
    eventually(lambda: "Models 1 in 2 trials" in words(browser.page("/ui/savings")), what="the sum of both trials")
    shown = words(browser.page("/ui/savings"))
    assert gateway.job_id in shown
    assert "CO₂: 473 g for a kWh" in shown
    assert "No trial has ended yet" in words(browser.page("/ui/savings?prefix=another"))
    assert "How this is counted" in words(browser.page("/ui"))
    found = gateway.ask("GET", "/v1/savings").value
    [one] = [each for each in found["jobs"] if each["job_id"] == gateway.job_id]
    assert [(month["models"], month["trials"]) for month in one["saved"]] == [(1, 2)]


def form_on(page: Answered) -> dict[str, str]:
    """The hidden fields of the form on a page."""
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page.text)
    return {name: unescape(value) for name, value in fields}


def sent(browser: Browser, path: str, form: dict[str, str], **headers: str) -> Answered:
    """The answer to a form."""
    body = urlencode(form).encode()
    return browser.gateway.ask(
        "POST", path, body, Cookie=browser.cookie, Content_Type="application/x-www-form-urlencoded", **headers
    )


def test_a_job_is_deleted_once_somebody_has_confirmed_it(start: StartGateway) -> None:
    gateway = start()
    trained(gateway)
    browser, job = opened(gateway), f"/ui/jobs/{gateway.job_id}"
    assert f'href="{job}/actions/delete"' in browser.page(job).text
    asked = browser.page(f"{job}/actions/delete")
    assert "Running trainings of the job are stopped" in words(asked)
    assert browser.page(job).status == 200, "asking does nothing"
    form = form_on(asked)
    done = sent(browser, f"{job}/actions/delete", form)
    assert (done.status, done.headers["location"]) == (303, "/ui")
    assert sent(browser, f"{job}/actions/delete", form).status == 303, "the same form again is the same command"
    assert "was deleted" in words(browser.page(job))


def test_a_form_of_another_session_or_site_does_nothing(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    browser, other, job = opened(gateway), opened(gateway), f"/ui/jobs/{gateway.job_id}"
    form = form_on(browser.page(f"{job}/actions/delete"))
    assert sent(other, f"{job}/actions/delete", form).status == 403, "of another session"
    assert sent(browser, f"{job}/actions/delete", form | {"seal": ""}).status == 403
    assert sent(browser, f"{job}/actions/delete", form, Origin="https://elsewhere.example").status == 403
    assert sent(browser, f"{job}/actions/delete", form | {"command_id": "x"}).status == 422
    assert sent(browser, f"{job}/actions/drop-table", form).status == 404
    assert browser.page(f"{job}/actions/allow?batch_size=many").status == 422
    assert browser.page("/ui/jobs/nobody-knows/actions/delete").status == 404
    assert browser.page(job).status == 200


def test_a_batch_size_may_be_tried_again(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.register()
    for _ in range(2):
        body = {"hardware": HARDWARE, "batch_size": 128}
        begun = gateway.ask("POST", f"/v1/jobs/{gateway.job_id}/trials", body, Content_Type="application/json").value
        end = {"outcome": "infeasible", "reason": "out_of_memory: CUDA out of memory", "trial_id": begun["trial_id"]}
        path = f"/v1/jobs/{gateway.job_id}/trials/{begun['trial_number']}/end"
        assert gateway.ask("PUT", path, end, Content_Type="application/json").status == 200
    browser, job = opened(gateway), f"/ui/jobs/{gateway.job_id}"
    (size,) = re.findall(r"actions/allow\?batch_size=(\d+)", browser.page(job).text)
    form = form_on(browser.page(f"{job}/actions/allow?batch_size={size}"))
    assert sent(browser, f"{job}/actions/allow", form).status == 303
    assert "actions/allow" not in browser.page(job).text


def test_operators_see_how_the_store_stands(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    shown = words(opened(gateway).page("/ui/operation"))
    assert "Jobs in trouble 0" in shown
    assert re.search(r"Schema of the database \d+, current", shown)
    assert "Queues" not in shown, "there is no broker"
    assert opened(gateway).page("/ui/operation/dead-letters").status == 503
    assert gateway.ask("GET", "/v1/operation").value["jobs_parked"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("migrated_url")
def test_over_a_broker_operators_see_its_workers_and_queues_and_others_do_not(
    amqp_url: str, start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    start_worker(gateways=login_of(amqp_url), operators=login_of(amqp_url)).ready()
    shown = words(opened(start_gateway(url=amqp_url)).page("/ui/operation"))
    assert "Workers that take commands 1" in shown
    assert re.search(r"bso\.inbox 0 1 ", shown)
    assert "bso.dead-letters 0 0" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("migrated_url")
def test_over_a_broker_dead_letters_are_shown_sent_again_and_deleted(
    amqp_url: str, start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    start_worker(gateways=login_of(amqp_url), operators=login_of(amqp_url)).ready()
    gateway = start_gateway(url=amqp_url)
    browser, page = opened(gateway), "/ui/operation/dead-letters"
    for text in ("no command", "nor is this one"):
        asyncio.run(_send(amqp_url, text))
    eventually(lambda: "nor is this one" in words(browser.page(page)), what="dead letters")
    form = form_on(browser.page(f"{page}/requeue?message_id=no-command"))
    assert form["message_id"] == "no-command"
    assert sent(browser, f"{page}/requeue", form | {"seal": "another"}).status == 403
    assert sent(browser, f"{page}/requeue", form).status == 303
    eventually(lambda: "no command" in words(browser.page(page)), what="the letter that no worker can handle again")
    assert sent(browser, f"{page}/drop", form_on(browser.page(f"{page}/drop"))).status == 303
    assert "every command that came could be handled" in words(browser.page(page))


async def _send(amqp_url: str, text: str) -> None:
    connection = await aio_pika.connect(amqp_url)
    async with connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(COMMANDS, ensure=False)
        message = aio_pika.Message(text.encode(), message_id=text.replace(" ", "-"), delivery_mode=2)
        await exchange.publish(message, COMMAND_KEY)


@pytest.mark.slow
@pytest.mark.usefixtures("migrated_url")
def test_over_a_broker_whose_workers_name_no_such_operator_the_page_says_so(
    amqp_url: str, start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    start_worker(gateways=login_of(amqp_url)).ready()
    gateway = start_gateway(url=amqp_url)
    page = opened(gateway).page("/ui/operation")
    assert (page.status, "only an operator may ask it" in words(page)) == (403, True)
    for path in ("", "/drop", "/requeue"):
        assert opened(gateway).page(f"/ui/operation/dead-letters{path}").status == 403


def test_who_operates_some_jobs_or_reads_sees_no_operation(guarded: Guarded) -> None:
    for words_of_token in (("ann", "--may", "read"), ("ann", "--may", "operate", "--jobs", "vision-*")):
        token = guarded.token(*words_of_token)
        assert guarded.ask(token, "GET", "/v1/operation").status == 403
        cookie = log_in(guarded.gateway, token).headers["set-cookie"].partition(";")[0]
        for path in ("/ui/operation", "/ui/operation/dead-letters", "/ui/operation/dead-letters/drop"):
            assert guarded.gateway.ask("GET", path, Cookie=cookie).status == 403


def test_who_may_only_read_is_refused(guarded: Guarded) -> None:
    wide = guarded.token("ann", "--may", "operate")
    spec = {"batch_sizes": [32, 64], "default_batch_size": 64, "target_metric": 0.9}
    assert guarded.ask(wide, "PUT", "/v1/jobs/vision-mnist", {"spec": spec}).status == 201
    narrow = guarded.token("ann", "--may", "read")
    cookie = log_in(guarded.gateway, narrow).headers["set-cookie"].partition(";")[0]
    reader = Browser(guarded.gateway, cookie)
    job = "/ui/jobs/vision-mnist"
    assert "actions/delete" not in reader.page(job).text
    form = form_on(reader.page(f"{job}/actions/delete"))
    refused = sent(reader, f"{job}/actions/delete", form)
    assert refused.status == 403
    assert guarded.ask(wide, "GET", "/v1/jobs/vision-mnist").status == 200


def test_a_token_opens_nothing_of_a_job_that_it_is_not_for(guarded: Guarded) -> None:
    wide = guarded.token("ann", "--may", "operate")
    spec = {"batch_sizes": [32, 64], "default_batch_size": 64, "target_metric": 0.9}
    assert guarded.ask(wide, "PUT", "/v1/jobs/speech-asr", {"spec": spec}).status == 201
    begun = guarded.ask(wide, "POST", "/v1/jobs/speech-asr/trials", {"hardware": HARDWARE})
    assert begun.status == 201
    narrow = guarded.token("ann", "--may", "read", "--jobs", "vision-*")
    sees, status = {wide: 200, narrow: 403}, {}
    for path in ("", "/trials/1", "/trials/1?known=all", "/trials.csv", "/what-if", "/what-if?eta=0.2", "/changes"):
        for token, expected in sees.items():  # the wide one first: what is kept of its page is for nobody else
            if (path, expected) == ("/changes", 200):
                continue  # it would not end
            cookie = log_in(guarded.gateway, token).headers["set-cookie"].partition(";")[0]
            answer = guarded.gateway.ask("GET", f"/ui/jobs/speech-asr{path}", Cookie=cookie)
            status[path, expected] = answer.status
    assert {key: found for key, found in status.items() if found != key[1]} == {}
    cookie = log_in(guarded.gateway, narrow).headers["set-cookie"].partition(";")[0]
    assert "speech-asr" not in guarded.gateway.ask("GET", "/ui", Cookie=cookie).text


def test_a_token_adds_up_only_the_jobs_that_it_is_for(guarded: Guarded) -> None:
    gateway = guarded.gateway
    wide = guarded.token("ann", "--may", "operate")
    spec = {"batch_sizes": [32, 64], "default_batch_size": 64, "target_metric": 0.9}
    for job_id in ("vision-mnist", "speech-asr"):
        assert guarded.ask(wide, "PUT", f"/v1/jobs/{job_id}", {"spec": spec}).status == 201
    narrow = guarded.token("ann", "--may", "read", "--jobs", "vision-*")
    seen = {token: guarded.ask(token, "GET", "/v1/savings").value["jobs"] for token in (wide, narrow)}
    assert {one["job_id"] for one in seen[wide]} == {"vision-mnist", "speech-asr"}
    assert {one["job_id"] for one in seen[narrow]} == {"vision-mnist"}
    assert gateway.ask("GET", "/v1/savings").status == 401


def test_a_page_has_pictures_that_lead_to_trials(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    page = opened(gateway).page(f"/ui/jobs/{gateway.job_id}").text
    assert page.count("<svg") == 4
    assert f'href="/ui/jobs/{gateway.job_id}/trials/1"' in page


def test_a_page_moves_when_a_training_reports(start: StartGateway) -> None:
    gateway = start()
    gateway.register()
    trial = gateway.begin()
    browser = opened(gateway)
    path = f"/ui/jobs/{gateway.job_id}"
    with gateway.stream(f"{path}/changes", Cookie=browser.cookie) as stream:
        changed: list[str] = []
        reader = threading.Thread(target=lambda: changed.append(stream.line("event: ")))
        reader.start()
        gateway.report(trial, 1, 0.25)
        eventually(lambda: bool(changed), what="a change")
        reader.join()
    assert changed == ["changed"]
    assert "metric 0.25" in words(browser.page(f"{path}/trials/{trial['trial_number']}"))


def test_a_key_opens_one_browser_and_the_next_one_is_logged(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    (first,) = keys(gateway)
    assert onwards(gateway.ask("GET", first)) == "/ui"
    eventually(lambda: len(keys(gateway)) == 2, what="the next key")
    again = gateway.ask("GET", first)
    assert (again.status, "set-cookie" in again.headers) == (401, False)
    assert "open the address that was printed last" in words(again)
    assert opened(gateway).page("/ui").status == 200


@pytest.mark.parametrize("path", ["/ui", "/ui/jobs/any", "/ui/jobs/any/trials/1", "/ui/jobs/any/changes"])
def test_who_was_not_let_in_sees_nothing(start_gateway: StartGateway, path: str) -> None:
    gateway = start_gateway()
    for cookie in ("", "bso_session=", "bso_session=forged"):
        answer = gateway.ask("GET", path, Cookie=cookie)
        assert answer.status == 401
        assert "has not been let in" in words(answer)


def test_the_session_is_for_pages_alone(guarded: Guarded) -> None:
    secret = guarded.token("ann", "--may", "read")
    cookie = log_in(guarded.gateway, secret).headers["set-cookie"].partition(";")[0]
    assert guarded.gateway.ask("GET", "/v1/jobs", Cookie=cookie).status == 401
    assert guarded.gateway.ask("GET", "/ui", Cookie=cookie).status == 200


def test_a_cookie_is_for_no_script_and_no_other_site(guarded: Guarded) -> None:
    answer = log_in(guarded.gateway, guarded.token("ann", "--may", "read"))
    assert onwards(answer) == "/ui"
    given = {part.strip().lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "path=/ui", "samesite=strict"} <= given


def test_with_tokens_a_reader_logs_in_and_sees_what_the_token_is_for(guarded: Guarded) -> None:
    gateway = guarded.gateway
    trainer = guarded.token("ann", "--may", "train", "--jobs", "*")
    for job_id in (f"{gateway.job_id}-seen", f"{gateway.job_id}-hidden"):
        spec = {"batch_sizes": [32, 64], "default_batch_size": 64, "target_metric": 0.9}
        assert guarded.ask(trainer, "PUT", f"/v1/jobs/{job_id}", {"spec": spec}).status in (200, 201)
    asked = gateway.ask("GET", f"/ui/jobs/{gateway.job_id}-seen", Accept="text/html")
    assert (asked.status, asked.headers["location"]) == (303, f"/ui/login?next=/ui/jobs/{gateway.job_id}-seen")
    reader = guarded.token("ann", "--may", "read", "--jobs", "*-seen")
    let_in = log_in(gateway, reader, following=f"/ui/jobs/{gateway.job_id}-seen")
    assert onwards(let_in) == f"/ui/jobs/{gateway.job_id}-seen"
    browser = Browser(gateway, let_in.headers["set-cookie"].partition(";")[0])
    listed = words(browser.page("/ui"))
    assert f"{gateway.job_id}-seen" in listed
    assert f"{gateway.job_id}-hidden" not in listed
    assert browser.page(f"/ui/jobs/{gateway.job_id}-hidden").status == 403
    assert browser.page(f"/ui/jobs/{gateway.job_id}-hidden/changes").status == 403


def test_a_wrong_token_is_refused_in_the_form_and_kept_out_of_the_page(guarded: Guarded) -> None:
    answer = log_in(guarded.gateway, "bso_wrong_token")
    assert answer.status == 401
    assert "the token is not known" in words(answer)
    assert "bso_wrong_token" not in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "following", ["https://evil.example/", "//evil.example/ui/jobs/x", "/ui/jobs/..\\evil", "/v1", "//["]
)
def test_after_the_login_nobody_is_sent_elsewhere(guarded: Guarded, following: str) -> None:
    answer = log_in(guarded.gateway, guarded.token("ann", "--may", "read"), following=following)
    assert onwards(answer) == "/ui"


def test_where_tokens_are_asked_for_no_address_lets_anybody_in(guarded: Guarded) -> None:
    """Else a link could make a reader somebody else, and tokens would stand in the logs of proxies."""
    answer = guarded.gateway.ask("GET", f"/ui?key={guarded.token('ann', '--may', 'read')}")
    assert (answer.status, "set-cookie" in answer.headers) == (401, False)


def test_a_form_of_another_site_is_refused(guarded: Guarded) -> None:
    form = urlencode({"token": "any"}).encode()
    kind = {"Content_Type": "application/x-www-form-urlencoded"}
    for foreign in ({"Origin": "https://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert guarded.gateway.ask("POST", "/ui/login", form, **kind, **foreign).status == 403


def test_a_link_from_another_site_leads_to_a_page(start_gateway: StartGateway) -> None:
    """A browser keeps the session back in that request; it sends it when our page goes on."""
    gateway = start_gateway()
    browser, link = opened(gateway), "/ui/jobs/any?hardware=x"
    foreign = {"Sec_Fetch_Site": "cross-site", "Accept": "text/html"}
    first = gateway.ask("GET", link, Sec_Fetch_Mode="navigate", **foreign)
    assert (first.status, onwards(first)) == (200, link)
    assert browser.page(onwards(first), Sec_Fetch_Site="same-origin", Accept="text/html").status == 404
    assert browser.page("/ui", Sec_Fetch_Mode="no-cors", **foreign).status == 403


@pytest.mark.parametrize("path", ["/ui", "/ui/nothing", "/ui/static/page.css", "/ui/static/live.js"])
def test_a_browser_runs_and_loads_only_what_is_here(start_gateway: StartGateway, path: str) -> None:
    answer = opened(start_gateway()).page(path)
    policy = answer.headers["content-security-policy"]
    assert {"default-src 'self'", "object-src 'none'", "frame-ancestors 'none'"} <= set(policy.split("; "))
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script>", answer.text)


def test_hostile_words_are_shown_as_words(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.register(gpu_model="A40")
    hardware = {"gpu_model": HOSTILE, "max_power_w": 300.0, "energy_method": "nvml_counter"}
    begun = gateway.ask(
        "POST",
        f"/v1/jobs/{gateway.job_id}/trials",
        {"hardware": hardware, "recurrence_id": "one"},
        Content_Type="application/json",
    )
    assert begun.status == 201, begun.text
    browser = opened(gateway)
    for path in ("/ui", f"/ui/jobs/{gateway.job_id}", f"/ui/jobs/{gateway.job_id}/trials/1"):
        page = browser.page(path).text
        assert not re.search(r"<script>|<img", page.partition("<main")[2])
    assert "&lt;script&gt;" in browser.page(f"/ui/jobs/{gateway.job_id}/trials/1").text


@pytest.mark.parametrize(
    ("path", "status", "found"),
    [
        ("/ui/jobs/nobody-knows", 404, "is not registered"),
        ("/ui/jobs/%2e%2e%2fetc", 404, "there is no page"),
        ("/ui/jobs/any%20job", 404, "job_id"),
        ("/ui/static/..%2froutes.py", 404, "there is no"),
        ("/ui/nothing", 404, "there is no page /ui/nothing"),
        ("/ui/login", 404, "nobody needs a token here"),
        (f"/ui/jobs/any/trials/{'9' * 5000}", 404, "is no number of a trial"),
        ("/ui/jobs/any/trials/-1", 404, "is no number of a trial"),
    ],
)
def test_what_is_not_there_has_a_page_that_says_so(
    start_gateway: StartGateway, path: str, status: int, found: str
) -> None:
    answer = opened(start_gateway()).page(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert found in words(answer)


def test_a_trial_that_is_not_there_is_named(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.register()
    answer = opened(gateway).page(f"/ui/jobs/{gateway.job_id}/trials/7")
    assert answer.status == 404
    assert f"job {gateway.job_id} has no trial 7" in words(answer)


def listed(page: Answered) -> list[str]:
    """The jobs in the list of a page, in its order."""
    table = page.text.partition('aria-label="Jobs"')[2]
    return re.findall(r'<th scope="row"><a href="/ui/jobs/([^"]*)"', table)


def test_jobs_are_found_by_a_part_of_their_names_and_listed_in_parts(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    for number in range(55):
        gateway.register(job_id=f"mnist-vision-{number:03}")
    for job_id in ("mnist-audio", "mnist-visioo", "mnist-visio"):
        gateway.register(job_id=job_id)
    browser = opened(gateway)
    eventually(lambda: "All jobs: 58" in words(browser.page("/ui")), what="all jobs")
    found = browser.page("/ui?contains=Vision-01")
    assert listed(found) == [f"mnist-vision-{n:03}" for n in range(10, 20)]
    assert 'rel="next"' not in found.text
    first = browser.page("/ui?contains=vision-&sort=-name")
    assert listed(first) == [f"mnist-vision-{n:03}" for n in range(54, 4, -1)]
    rest = browser.page(unescape(re.findall(r'rel="next" href="([^"]*)"', first.text)[0]))
    assert listed(rest) == [f"mnist-vision-{n:03}" for n in range(4, -1, -1)]
    assert "No job that you may see" in browser.page("/ui?contains=zzz").text


def test_jobs_are_ordered_by_what_is_known_of_them(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    for job_id, trials in (("mnist-a", 1), ("mnist-b", 3), ("mnist-c", 0)):
        gateway.register(job_id=job_id)
        for _ in range(trials):
            gateway.end(gateway.begin(job_id=job_id))
    browser = opened(gateway)
    assert listed(browser.page("/ui")) == ["mnist-a", "mnist-b", "mnist-c"]
    assert listed(browser.page("/ui?sort=-trials")) == ["mnist-b", "mnist-a", "mnist-c"]
    assert listed(browser.page("/ui?sort=trials")) == ["mnist-c", "mnist-a", "mnist-b"]
    for direction in ("", "-"):
        assert listed(browser.page(f"/ui?sort={direction}took"))[-1] == "mnist-c", "what is not known comes last"
    assert 'aria-sort="descending"' in browser.page("/ui?sort=-trials").text
    for odd in ("sort=__class__", "sort=", "page=99", "page=-1", f"page={'9' * 5000}"):
        assert listed(browser.page(f"/ui?{odd}")) == ["mnist-a", "mnist-b", "mnist-c"]


def test_running_trials_are_listed_with_their_jobs(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.register()
    trial = gateway.begin()
    gateway.report(trial, 1, 0.3)
    assert "Running now: 1" in words(opened(gateway).page("/ui"))


@pytest.mark.parametrize("text", ["%00", "%EE%80%80", "a%2Fb", "x" * 5000, "zzz"])
def test_no_job_has_a_name_that_contains_this(start_gateway: StartGateway, text: str) -> None:
    answer = opened(start_gateway()).page(f"/ui?contains={text}")
    assert answer.status == 200
    assert "No job that you may see has a name that contains" in words(answer)


def test_characters_that_would_hide_or_reorder_text_are_shown_by_their_numbers(start_gateway: StartGateway) -> None:
    page = opened(start_gateway()).page("/ui?contains=a%E2%80%AEb").text
    assert "\u202e" not in page
    assert "a\\u202eb" in page


def test_a_trial_shows_what_was_known_when_it_began(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    gateway.end(gateway.begin())
    browser, job = opened(gateway), f"/ui/jobs/{gateway.job_id}"
    first = words(browser.page(f"{job}/trials/1"))
    assert "Nothing was known on" in first
    second = words(browser.page(f"{job}/trials/2"))
    assert "The cheapest training that had converged" in second
    assert re.search(r"\(chosen\)", second)


def test_all_trials_of_a_job_are_exported(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    gateway.end(gateway.begin())
    browser = opened(gateway)
    answer = browser.page(f"/ui/jobs/{gateway.job_id}/trials.csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="{gateway.job_id}-trials.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["trial_number"] for row in rows] == ["1", "2"]
    assert rows[0]["outcome"] == "converged"
    assert browser.page("/ui/jobs/nobody-knows/trials.csv").status == 404


def test_what_another_policy_would_have_cost_is_simulated(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    for _ in range(4):
        trained(gateway)
    browser, page = opened(gateway), f"/ui/jobs/{gateway.job_id}/what-if"
    assert "Nothing of the job changes" in words(browser.page(page))
    found = words(browser.page(f"{page}?policy=pruning_thompson&eta=0.2"))
    assert "policy pruning_thompson, eta 0.2" in found
    assert "as it is" in found
    assert browser.page(f"{page}?policy=nobodys").status == 422
    assert browser.page(f"{page}?eta=2").status == 422


def test_a_simulation_ends_when_its_page_is_left(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    browser, path = opened(gateway), f"/ui/jobs/{gateway.job_id}/what-if?eta=0.2"
    connection = HTTPConnection("127.0.0.1", gateway.port)
    connection.request("GET", path, headers={"Cookie": browser.cookie})
    simulating = eventually(lambda: simulations_of(gateway.process.process.pid), what="the process that simulates")
    for process_id in simulating:
        os.kill(process_id, signal.SIGSTOP)  # it does not end by itself
    again = words(browser.page(path))
    assert "another simulation runs at this gateway" in again
    connection.close()
    eventually(lambda: not simulations_of(gateway.process.process.pid), what="the end of the simulation")


def simulations_of(process_id: int) -> list[int]:
    """The simulations that a process has started. Before its exec a child is none yet, and must not be stopped."""
    lists = Path(f"/proc/{process_id}/task").glob("*/children")
    children = [int(child) for each in lists for child in each.read_text().split()]
    return [child for child in children if b"bso_gateway.pages.what_if" in _command_line(child)]


def _command_line(process_id: int) -> bytes:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return b""


def test_of_a_job_without_a_model_no_simulation_can_say_anything(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.register()
    gateway.begin()
    found = words(opened(gateway).page(f"/ui/jobs/{gateway.job_id}/what-if?eta=0.2"))
    assert "nothing can be said" in found or "is recorded" in found


def test_hardware_that_a_job_has_not_run_on_is_named(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    answer = opened(gateway).page(f"/ui/jobs/{gateway.job_id}?hardware=abacus")
    assert answer.status == 404
    assert f"job {gateway.job_id} has not run on abacus" in words(answer)


def test_a_trial_of_an_earlier_version_is_not_measured_against_the_target_of_now(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    trained(gateway)
    spec = {name: SPEC[name] for name in ("batch_sizes", "default_batch_size", "max_epochs")} | {"target_metric": 0.99}
    path = f"/v1/jobs/{gateway.job_id}"
    changed = gateway.ask("PUT", path, {"spec": spec}, Content_Type="application/json")
    assert changed.value["version_number"] == 2, changed.text
    browser = opened(gateway)
    shown = words(browser.page(f"/ui/jobs/{gateway.job_id}/trials/1"))
    assert "It is of version 1 of the job" in shown
    assert "0.99" not in shown
    job = words(browser.page(f"/ui/jobs/{gateway.job_id}"))
    of_both = "batch sizes 32, 64, 128 (default 64), target metric at least {} within 10 epochs, eta 0.5, policy curve"
    assert f"2 {of_both.format('0.99')} 0 0 " in job
    assert f"1 {of_both.format('0.9')} 1 1 " in job


def test_of_many_trials_the_last_are_shown_and_the_page_stays_small(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.register()
    for _ in range(160):
        trial = gateway.begin()
        gateway.report(trial, 1, 0.95)
    page = opened(gateway).page(f"/ui/jobs/{gateway.job_id}")
    assert "The last 30; bso jobs export" in words(page)
    assert f'/ui/jobs/{gateway.job_id}/trials/160"' in page.text
    assert len(re.findall(r"<[a-zA-Z]", page.text)) < 2000
    assert len(page.text) < 300_000


def test_an_empty_list_says_how_a_job_comes_into_it(start_gateway: StartGateway) -> None:
    assert "No job yet. A training appears here as soon as it begins" in words(opened(start_gateway()).page("/ui"))


def test_logging_out_forgets_the_session(guarded: Guarded) -> None:
    answer = guarded.gateway.ask("POST", "/ui/logout", b"", Content_Type="application/x-www-form-urlencoded")
    assert (answer.status, answer.headers["location"]) == (303, "/ui/login")
    assert 'bso_session=""' in answer.headers["set-cookie"]


def test_a_revoked_token_opens_no_page(guarded: Guarded) -> None:
    """A session is checked as every token is: known for half a minute at most."""
    secret = guarded.token("ann", "--may", "read")
    cookie = log_in(guarded.gateway, secret).headers["set-cookie"].partition(";")[0]
    guarded.bso("revoke", guarded.bso("list")[0]["token_id"])
    eventually(lambda: guarded.gateway.ask("GET", "/ui", Cookie=cookie).status == 401, what="the end of the session")


def test_the_routes_of_programs_are_as_before(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    assert gateway.ask("GET", "/v1/nothing").headers["content-type"] == "application/problem+json"
    assert gateway.ask("PUT", "/report", SPEC, Content_Type="application/json").status == 405
    assert json.loads(gateway.ask("GET", "/uix").text) == {"detail": "Not Found"}
