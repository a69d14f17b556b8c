"""Pages for people: who may open them, what they show, and that nothing in them is obeyed by a browser."""

import json
import re
import threading
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.integration.gateway.conftest import SPEC, Answered, Gateway, StartGateway
from tests.integration.gateway.test_tokens import Guarded, guarded
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


def test_jobs_are_found_by_the_beginning_of_their_names_and_listed_in_parts(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    for number in range(105):
        gateway.register(job_id=f"mnist-vision-{number:03}")
    for job_id in ("mnist-audio", "mnist-visioo", "mnist-visio"):
        gateway.register(job_id=job_id)
    browser = opened(gateway)
    found = browser.page("/ui?prefix=mnist-vision-0").text
    assert found.count('<th scope="row">') == 100
    assert "More jobs" not in found
    first = browser.page("/ui?prefix=mnist-vision-").text
    assert first.count('<th scope="row">') == 100
    rest = browser.page(unescape(re.findall(r'rel="next" href="([^"]*)"', first)[0])).text
    assert re.findall(r'<th scope="row"><a href="/ui/jobs/([^"]*)"', rest) == [
        f"mnist-vision-{n}" for n in range(100, 105)
    ]
    assert "No job that you may see" in browser.page("/ui?prefix=zzz").text


@pytest.mark.parametrize("prefix", ["%00", "%EE%80%80", "a%2Fb", "x" * 5000, "zzz"])
def test_no_job_has_a_name_that_begins_so(start_gateway: StartGateway, prefix: str) -> None:
    answer = opened(start_gateway()).page(f"/ui?prefix={prefix}")
    assert answer.status == 200
    assert "No job that you may see has a name beginning with" in words(answer)


def test_characters_that_would_hide_or_reorder_text_are_shown_by_their_numbers(start_gateway: StartGateway) -> None:
    page = opened(start_gateway()).page("/ui?prefix=a%E2%80%AEb").text
    assert "\u202e" not in page
    assert "a\\u202eb" in page


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
    shown = words(opened(gateway).page(f"/ui/jobs/{gateway.job_id}/trials/1"))
    assert "It is of version 1 of the job" in shown
    assert "0.99" not in shown


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
