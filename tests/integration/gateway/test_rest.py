"""The API under /v1, over both ways to decide."""

import uuid
from typing import Any

import jsonschema
import pytest

from tests.integration.gateway.conftest import Answered, Gateway, StartGateway

HARDWARE = {"gpu_model": "A40", "max_power_w": 300.0, "energy_method": "nvml_counter"}
SPEC = {"batch_sizes": [32, 64], "default_batch_size": 64, "target_metric": 0.9}


def ask(gateway: Gateway, method: str, path: str, body: object = None, **headers: str) -> Answered:
    """The answer to a request; ``/jobs/job`` is the gateway's own job."""
    own = f"/v1{path}".replace("/jobs/job", f"/jobs/{gateway.job_id}")
    return gateway.ask(method, own, body, Content_Type="application/json", **headers)


def begun(gateway: Gateway) -> dict[str, Any]:
    answer = ask(gateway, "POST", "/jobs/job/trials", {"hardware": HARDWARE})
    assert answer.status == 201, answer
    trial: dict[str, Any] = answer.value
    return trial


def test_a_training(gateway: Gateway) -> None:
    registered = ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    assert (registered.status, registered.value["is_new"]) == (201, True)
    assert ask(gateway, "PUT", "/jobs/job", {"spec": SPEC}).status == 200

    trial = begun(gateway)
    assert (trial["trial_number"], trial["batch_size"]) == (1, 64)
    where = f"/jobs/job/trials/{trial['trial_number']}"
    assert ask(gateway, "PUT", f"{where}/lease", {"trial_id": trial["trial_id"]}).value["batch_size"] == 64
    report = {"trial_id": trial["trial_id"], "epoch": 1.0, "time_s": 60.0, "energy_j": 1000.0, "metric": "NaN"}
    assert ask(gateway, "POST", f"{where}/reports", report).value["should_stop"] is False
    report |= {"epoch": 2.0, "time_s": 120.0, "energy_j": 2000.0, "metric": 0.95}
    judged = ask(gateway, "POST", f"{where}/reports", report).value
    assert (judged["should_stop"], judged["outcome"]) == (True, "converged")
    ended = ask(gateway, "PUT", f"{where}/end", {"trial_id": trial["trial_id"], "outcome": "interrupted"})
    assert (ended.status, ended.value["outcome"]) == (200, "converged")

    [listed] = ask(gateway, "GET", "/jobs/job/trials").value["trials"]
    assert (listed["outcome"], listed["reason"]) == ("converged", trial["reason"])
    assert ask(gateway, "GET", "/jobs/job").value["trials"] == 1


def test_a_job_without_a_name(gateway: Gateway) -> None:
    body = {"spec": SPEC, "job_id_prefix": "vision"}
    key = str(uuid.uuid4())
    first, again = (ask(gateway, "POST", "/jobs", body, Idempotency_Key=key) for _ in range(2))
    assert first.value["job_id"].startswith("vision-")
    assert again.value == first.value
    assert ask(gateway, "GET", f"/jobs/{first.value['job_id']}").status == 200


def test_pages_go_on_where_the_last_one_ended(gateway: Gateway) -> None:
    for number in range(12):
        assert ask(gateway, "PUT", f"/jobs/job-{number:02}", {"spec": SPEC}).status == 201
    own = [f"{gateway.job_id}-{number:02}" for number in range(12)]
    names, after = [], gateway.job_id
    while True:
        page = ask(gateway, "GET", f"/jobs?after={after}").value
        names += [each["job_id"] for each in page["jobs"]]
        if page["next_after"] is None or len(names) >= 12:
            break
        after = page["next_after"]
    assert names[:12] == own


def test_the_log(gateway: Gateway) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    begun(gateway)
    events = ask(gateway, "GET", "/jobs/job/events").value["events"]
    assert [each["type"] for each in events] == ["job_registered", "recurrence_opened", "trial_started"]
    assert events[-1]["body"]["trial_id"] == ""
    later = ask(gateway, "GET", f"/jobs/job/events?after={events[0]['event_id']}").value["events"]
    assert [each["seq"] for each in later] == [2, 3]


def test_events_come_as_they_happen_and_go_on_where_a_client_was(start: StartGateway) -> None:
    gateway = start()
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    with gateway.stream(f"/v1/jobs/{gateway.job_id}/events") as stream:
        [first] = stream.events(1)
        assert (first.name, first.value["seq"]) == ("job_registered", 1)
        begun(gateway)
        opened, started = stream.events(2)
    assert [opened.name, started.name] == ["recurrence_opened", "trial_started"]
    assert started.id.startswith("1.3.")
    with gateway.stream(f"/v1/jobs/{gateway.job_id}/events", Last_Event_ID=opened.id) as stream:
        [again] = stream.events(1)
        assert again.id == started.id
        gateway.process.terminate()
        assert stream.ends()
    assert gateway.process.wait() == 0


def test_events_of_an_unknown_job(gateway: Gateway) -> None:
    answer = gateway.ask("GET", "/v1/jobs/nobody/events", Accept="text/event-stream")
    assert (answer.status, answer.value["code"]) == (404, "unknown_job")
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    answer = gateway.ask("GET", f"/v1/jobs/{gateway.job_id}/events", Accept="text/event-stream", Last_Event_ID="mine")
    assert (answer.status, answer.value["code"]) == (400, "invalid_event_id")


def follow(*jobs: str) -> str:
    return "/v1/events?" + "&".join(f"job_id={job_id}" for job_id in jobs)


def test_events_of_several_jobs_go_on_at_any_gateway(start: StartGateway) -> None:
    gateway, other = start(), start()
    other.job_id = f"{gateway.job_id}-b"
    for each in (gateway, other):
        ask(each, "PUT", "/jobs/job", {"spec": SPEC})
    path = follow(gateway.job_id, other.job_id)
    with gateway.stream(path) as stream:
        seen = stream.events(2)
        begun(gateway)
        begun(other)
        seen += stream.events(3)
        gateway.process.process.kill()
    with other.stream(path, Last_Event_ID=seen[-1].id) as stream:
        seen += stream.events(1)
        assert ask(other, "PUT", "/jobs/job/allowed/64").status == 200
        seen += stream.events(1)
    for job_id, count in ((gateway.job_id, 3), (other.job_id, 4)):
        assert [each.value["seq"] for each in seen if each.value["job_id"] == job_id] == [*range(1, count + 1)]


def test_pages_of_several_logs(gateway: Gateway) -> None:
    names = [f"{gateway.job_id}-{letter}" for letter in "abc"]
    for letter in "abc":
        ask(gateway, "PUT", f"/jobs/job-{letter}", {"spec": SPEC})
        for _ in range(25):
            assert ask(gateway, "PUT", f"/jobs/job-{letter}/allowed/64").status == 200
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = gateway.ask("GET", f"{follow(*names)}&after={after}").value
        found += page["events"]
        after = page["next_after"]
    for job_id in names:
        assert [each["seq"] for each in found if each["job_id"] == job_id] == [*range(1, 27)]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("", 422, "invalid_query"),
        ("job_id=no%20name", 422, "invalid_identifier"),
        ("job_id={own}&job_id=nobody", 404, "unknown_job"),
        ("job_id={own}&after=none", 400, "invalid_event_id"),
        ("job_id={own}&after=0123456789ab.-1", 400, "invalid_event_id"),
        ("job_id={own}&type=trial_end", 422, "invalid_query"),
        ("&".join(f"job_id=job-{number}" for number in range(51)), 422, "invalid_query"),
    ],
)
def test_wrong_questions_about_several_jobs(gateway: Gateway, query: str, status: int, code: str) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    answer = gateway.ask("GET", f"/v1/events?{query.format(own=gateway.job_id)}")
    assert (answer.status, answer.value["code"]) == (status, code), answer


def test_trials_and_events_are_filtered(gateway: Gateway) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    first = begun(gateway)
    body = {"trial_id": first["trial_id"], "outcome": "infeasible"}
    assert ask(gateway, "PUT", "/jobs/job/trials/1/end", body).status == 200
    second = begun(gateway)
    assert first["batch_size"] != second["batch_size"]
    for query, numbers in (
        ("state=running", [2]),
        ("outcome=infeasible", [1]),
        (f"batch_size={second['batch_size']}", [2]),
        (f"batch_size={first['batch_size']}&state=running", []),
    ):
        trials = ask(gateway, "GET", f"/jobs/job/trials?{query}").value["trials"]
        assert [each["trial_number"] for each in trials] == numbers, query
    assert ask(gateway, "GET", "/jobs/job/trials?state=tired").status == 422
    wanted = ["job_registered", "trial_started"]
    for path in (f"/v1/jobs/{gateway.job_id}/events?", f"{follow(gateway.job_id)}&"):
        events = gateway.ask("GET", f"{path}type=trial_started&type=job_registered").value["events"]
        assert [each["type"] for each in events] == [*wanted, "trial_started"]
        with gateway.stream(f"{path}type=trial_ended") as stream:
            assert [each.name for each in stream.events(1)] == ["trial_ended"]


def test_the_rest_of_the_commands(gateway: Gateway) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    trial = begun(gateway)
    out_of_memory = {"trial_id": trial["trial_id"], "outcome": "infeasible", "reason": "out_of_memory: CUDA"}
    assert ask(gateway, "PUT", "/jobs/job/trials/1/end", out_of_memory).value["should_retry"] is True
    assert ask(gateway, "PUT", "/jobs/job/allowed/64", {}).value["hardware_keys"]
    measured = [{"power_limit_w": 200.0, "average_power_w": 190.0, "samples_per_s": 1000.0}]
    profile = {"hardware": HARDWARE, "measurements": measured}
    assert ask(gateway, "PUT", "/jobs/job/power-profiles/32", profile).status == 200
    [found] = ask(gateway, "GET", "/jobs/job/power-profiles").value["profiles"]
    assert (found["batch_size"], found["measurements"]) == (32, measured)
    assert ask(gateway, "PUT", "/jobs/job/grants/bob", {"right": "read"}).value["grants"] == {"bob": "read"}
    assert ask(gateway, "PUT", "/jobs/job/owner/carol", {}).value["owner"] == "carol"
    assert ask(gateway, "DELETE", "/jobs/job").status in (200, 403)


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        (("GET", "/jobs/nobody", None), 404, "unknown_job"),
        (("GET", "/jobs/nobody/trials", None), 404, "unknown_job"),
        (("GET", "/jobs/job/trials?after=x", None), 422, "invalid_query"),
        (("GET", "/jobs?after=%C3%A4", None), 422, "invalid_query"),
        (("GET", "/savings?after=%C3%A4", None), 422, "invalid_query"),
        (("GET", "/jobs/job/events?type=trial_ended&type=trial_ended", None), 422, "invalid_query"),
        (("POST", "/jobs/nobody/trials", {"hardware": HARDWARE}), 404, "unknown_job"),
        (("POST", "/jobs/job/trials", {}), 422, "invalid_body"),
        (("POST", "/jobs/job/trials", []), 422, "invalid_body"),
        (("POST", "/jobs/job/trials", b"{"), 422, "invalid_body"),
        (("PUT", "/jobs/job", {"spec": {"batch_sizes": [1], "default_batch_size": 2}}), 422, "invalid_spec"),
        (("PUT", "/jobs/no%20name", {"spec": SPEC}), 422, "invalid_identifier"),
        (("PUT", "/jobs/job/trials/9/lease", {"trial_id": "x"}), 404, "unknown_trial"),
        (("PUT", "/jobs/job/trials/1/lease", {"trial_id": "x"}), 409, "wrong_trial_id"),
        (("PUT", "/jobs/job/trials/one/lease", {"trial_id": "x"}), 422, "invalid_body"),
        (("PUT", "/jobs/job/allowed/7", {}), 404, "unknown_batch_size"),
        (("PUT", "/jobs/job", {"spec": SPEC | {"target_metric": 0.8}, "on_conflict": "raise"}), 409, "job_conflict"),
    ],
)
def test_a_problem_says_what_is_wrong(gateway: Gateway, asked: tuple[str, str, object], status: int, code: str) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    begun(gateway)
    problem = ask(gateway, *asked)
    assert (problem.status, problem.value["code"]) == (status, code)
    assert problem.headers["content-type"] == "application/problem+json"
    assert problem.value["type"] == f"urn:bso:problem:{code}"
    assert problem.value["detail"]


def test_the_fields_that_are_wrong_are_named(gateway: Gateway) -> None:
    assert ask(gateway, "PUT", "/jobs/job", {}).value["fields"] == {"spec": "is missing"}
    several = "&".join(f"job_id=job-{number}" for number in range(51))
    found = gateway.ask("GET", f"/v1/events?{several}").value["fields"]
    assert found == {"query.job_id": "may have at most 50 items"}


def test_a_body_may_not_contradict_its_path_or_give_a_truth_value_for_a_number(gateway: Gateway) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    trial = begun(gateway)
    place = f"/jobs/job/trials/{trial['trial_number']}/reports"
    report = {"trial_id": trial["trial_id"], "epoch": 1, "time_s": 1.0, "energy_j": 1.0, "metric": 0.1}
    for changes, field in (
        ({"metric": True}, "metric"),
        ({"metric": "1"}, "metric"),
        ({"trial_number": trial["trial_number"] + 1}, "trial_number"),
        ({"job_id": "another"}, "job_id"),
    ):
        refused = ask(gateway, "POST", place, report | changes)
        assert (refused.status, refused.value["code"]) == (422, "invalid_body")
        assert list(refused.value["fields"]) == [field]
    named = {"job_id": gateway.job_id, "trial_number": trial["trial_number"]}
    assert ask(gateway, "POST", place, report | named).status == 200


def test_a_body_has_to_say_that_it_is_json(gateway: Gateway) -> None:
    refused = gateway.ask("PUT", "/v1/jobs/job", {"spec": SPEC})
    assert (refused.status, refused.value["code"]) == (415, "unsupported_media_type")


def test_every_reference_of_the_description_leads_somewhere(gateway: Gateway) -> None:
    described = gateway.ask("GET", "/openapi.json").value

    def references(value: object) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*(references(each) for each in value.values()))
        return set().union(*(references(each) for each in value)) if isinstance(value, list) else set()

    found = references(described)
    assert "#/components/schemas/TrialBegun" in found
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert found <= known
    assert {path for path in described["paths"] if path.startswith("/v1")} >= {"/v1/jobs", "/v1/jobs/{job_id}/events"}


def test_the_description_says_what_each_route_takes_and_gives(gateway: Gateway) -> None:
    described = gateway.ask("GET", "/openapi.json").value

    def given(operation: dict[str, Any], status: str, kind: str = "application/json") -> object:
        return operation["responses"][status]["content"][kind]["schema"].get("$ref", "").rpartition("/")[2]

    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            if not path.startswith("/v1"):
                continue
            assert "422" not in operation["responses"], f"{method} {path} names another form than that of problems"
            assert given(operation, "default", "application/problem+json") == "HttpProblem"
            statuses = operation["responses"].keys() - {"default", "202"}
            made = {status: given(operation, status) for status in statuses}
            assert made, f"{method} {path} does not say what it gives"
            assert all(made.values()), f"{method} {path} does not say what it gives"
            assert ("requestBody" in operation) == (method in {"post", "put"}), f"{method} {path}"
    paths = described["paths"]
    assert {given(paths["/v1/jobs"]["post"], status) for status in ("200", "201")} == {"Registered"}
    events = paths["/v1/jobs/{job_id}/events"]["get"]
    assert "text/event-stream" in events["responses"]["200"]["content"]
    assert "Last-Event-ID" in {one["name"] for one in events["parameters"]}
    assert given(paths["/report"]["post"], "422") == "Detail"
    assert given(paths["/v1/jobs"]["post"], "202", "application/problem+json") == "HttpProblem"
    assert "Idempotency-Key" in {one["name"] for one in paths["/jobs/batch_size"]["get"]["parameters"]}
    schemas = described["components"]["schemas"]
    assert schemas["RegisterJob"]["properties"]["spec"] == {"$ref": "#/components/schemas/Specification"}
    assert "default_batch_size" in schemas["Specification"]["properties"]


def test_answers_are_as_described(gateway: Gateway) -> None:
    described = gateway.ask("GET", "/openapi.json").value
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    trial = begun(gateway)
    report = {"trial_id": trial["trial_id"], "epoch": 1.0, "time_s": 60.0, "energy_j": 1000.0, "metric": 0.95}
    ask(gateway, "POST", f"/jobs/job/trials/{trial['trial_number']}/reports", report)
    job_id = gateway.job_id
    for path, name in (
        ("/v1/jobs", "ListedJobs"),
        (f"/v1/jobs/{job_id}", "JobDescription"),
        (f"/v1/jobs/{job_id}/trials", "TrialsPage"),
        (f"/v1/jobs/{job_id}/events", "Events"),
        (f"/v1/events?job_id={job_id}", "EventsOfJobs"),
        (f"/v1/jobs/{job_id}/power-profiles", "PowerProfilesPage"),
        ("/v1/savings", "SavingsPage"),
        ("/v1/operation", "Operation"),
    ):
        answer = gateway.ask("GET", path)
        is_refused = answer.status == 403 and name == "Operation"  # over a broker the fixture's login is no operator
        assert is_refused or answer.status == 200, path
        schema = {
            "$ref": f"#/components/schemas/{'HttpProblem' if is_refused else name}",
            "components": described["components"],
        }
        jsonschema.Draft202012Validator(schema).validate(answer.value)
    [event, *_] = gateway.ask("GET", f"/v1/jobs/{job_id}/events").value["events"]
    assert event.keys() <= described["components"]["schemas"]["Event"]["properties"].keys()
    for method, path, status in (
        ("GET", "/jobs/batch_size", "422"),
        ("DELETE", "/jobs", "422"),
        ("PATCH", "/jobs", "405"),
        ("GET", "/jobs/batch_size?job_id=nobody", "400"),
    ):
        refused = gateway.ask(method, path)
        route = described["paths"][path.partition("?")[0]]
        of_route = route.get(method.lower(), next(iter(route.values())))["responses"][status]
        assert refused.status == int(status)
        schema = {**of_route["content"]["application/json"]["schema"], "components": described["components"]}
        jsonschema.Draft202012Validator(schema).validate(refused.value)


def test_a_key_is_for_one_request(gateway: Gateway) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    key = str(uuid.uuid4())
    trial = ask(gateway, "POST", "/jobs/job/trials", {"hardware": HARDWARE}, Idempotency_Key=key).value
    report = {"trial_id": trial["trial_id"], "epoch": 1.0, "time_s": 60.0, "energy_j": 1000.0, "metric": 0.1}
    reports = "/jobs/job/trials/1/reports"
    first = str(uuid.uuid4())
    judged = ask(gateway, "POST", reports, report, Idempotency_Key=first)
    assert judged.status == 200
    for method, path, body, used in (
        ("DELETE", "/jobs/job", None, key),
        ("POST", reports, report, key),
        ("POST", reports, report | {"epoch": 2.0, "time_s": 120.0, "energy_j": 2000.0, "metric": 0.95}, first),
    ):
        refused = ask(gateway, method, path, body, Idempotency_Key=used)
        assert (refused.status, refused.value["code"]) == (409, "command_id_taken"), path
    assert ask(gateway, "POST", reports, report, Idempotency_Key=first).value == judged.value
    wire = {"batch_size": 64, "trial_number": 1, "time": 120, "energy": 2000, "metric": 0.95, "current_epoch": 2}
    assert gateway.ask("POST", "/report", wire | {"job_id": gateway.job_id}, Idempotency_Key=key).status == 409


def test_a_trial_is_known_by_its_id(gateway: Gateway) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    begun(gateway)
    report = {"trial_id": "", "epoch": 1.0, "time_s": 60.0, "energy_j": 1000.0, "metric": 0.95}
    refused = ask(gateway, "POST", "/jobs/job/trials/1/reports", report)
    assert (refused.status, list(refused.value["fields"])) == (422, ["trial_id"])
    message = {
        "schema_major": 1,
        "type": "report_epoch",
        "command_id": str(uuid.uuid4()),
        "job_id": gateway.job_id,
        "body": report | {"trial_number": 1},
    }
    assert ask(gateway, "POST", "/commands", message).status == 422


@pytest.mark.parametrize(
    "query", ["trials?outcom=cancelled", "trials?outcome=converged&outcome=cancelled", "events?after=1&after=2"]
)
def test_a_query_that_would_say_something_else_than_it_seems(gateway: Gateway, query: str) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    refused = ask(gateway, "GET", f"/jobs/job/{query}")
    assert (refused.status, refused.value["code"]) == (422, "invalid_query")


@pytest.mark.parametrize("alias", ["1_0", "010", "+10", "10.0", "%2010", "10%0a", "%D9%A1%D9%A0"])
def test_a_number_has_one_form_in_a_path_and_in_a_query(gateway: Gateway, alias: str) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    refused = ask(gateway, "PUT", f"/jobs/job/trials/{alias}/lease", {"trial_id": "x"})
    assert (refused.status, list(refused.value["fields"])) == (422, ["trial_number"])
    assert ask(gateway, "PUT", f"/jobs/job/allowed/{alias}", {}).status == 422
    quoted = alias.replace("+", "%2B")
    for query in (f"events?after={quoted}", f"trials?after={quoted}", f"trials?batch_size={quoted}"):
        refused = ask(gateway, "GET", f"/jobs/job/{query}")
        assert (refused.status, refused.value["code"]) == (422, "invalid_query"), query
    assert ask(gateway, "GET", "/jobs/job/trials?after=10").status == 200
    assert ask(gateway, "PUT", "/jobs/job/trials/10/lease", {"trial_id": "x"}).value["code"] == "unknown_trial"


def test_a_log_is_polled_without_reading_it_again(gateway: Gateway) -> None:
    ask(gateway, "PUT", "/jobs/job", {"spec": SPEC})
    trial = begun(gateway)
    [*_, last] = ask(gateway, "GET", "/jobs/job/events").value["events"]
    page = ask(gateway, "GET", "/jobs/job/events?type=trial_ended").value
    assert page == {"events": [], "next_after": None, "resume_after": last["event_id"]}
    resumed = f"/jobs/job/events?type=trial_ended&after={page['resume_after']}"
    assert ask(gateway, "GET", resumed).value == page
    ended = {"trial_id": trial["trial_id"], "outcome": "cancelled"}
    assert ask(gateway, "PUT", "/jobs/job/trials/1/end", ended).status == 200
    [event] = ask(gateway, "GET", resumed).value["events"]
    assert event["type"] == "trial_ended"


def test_a_specification_is_described_without_defaults_that_would_change_a_known_job(alone: Gateway) -> None:
    schemas = alone.ask("GET", "/openapi.json").value["components"]["schemas"]
    described = schemas["Specification"]
    assert described["properties"].keys() == schemas["JobSpec"]["properties"].keys()
    for name, field in described["properties"].items():
        assert "default" not in field, name
        assert field["description"], name
    assert described["properties"]["eta_knob"]["description"].endswith("For a new job: 0.5.")
    check = jsonschema.Draft202012Validator(described)
    assert check.is_valid({})
    assert check.is_valid(SPEC | {"eta_knob": 1, "beta_knob": None, "batch_sizes": [1, 2**31 - 1]})
    ask(alone, "PUT", "/jobs/job", {"spec": SPEC})
    refused_fields: tuple[dict[str, Any], ...] = (
        {"eta_knob": 1.1},
        {"beta_knob": 0.9},
        {"batch_sizes": [0]},
        {"batch_sizes": []},
        {"default_batch_size": 2**31},
        {"mab_seed": -1},
        {"cost_budget": 0},
        {"version": 121 * "x"},
        {"min_saving": 0.6},
    )
    for wrong in refused_fields:
        assert not check.is_valid(wrong), wrong
        refused = ask(alone, "PUT", "/jobs/job", {"spec": wrong})
        assert (refused.status, refused.value["code"]) == (422, "invalid_spec"), wrong


def test_operations_have_short_names_of_their_own_and_say_what_they_do(alone: Gateway) -> None:
    described = alone.ask("GET", "/openapi.json").value
    operations = {
        (method, path): each for path, methods in described["paths"].items() for method, each in methods.items()
    }
    names = [each["operationId"] for each in operations.values()]
    assert len(names) == len(set(names))
    assert all(name.isidentifier() and len(name) <= 20 for name in names)
    assert {"begin_trial", "report_epoch", "finish_trial", "register_job", "list_events"} <= set(names)
    assert not [where for where, each in operations.items() if where[1].startswith("/v1") and not each["description"]]
    trial = "/v1/jobs/{job_id}/trials/{trial_number}"
    assert "cancelled, infeasible, interrupted, not_converged" in operations["put", f"{trial}/end"]["description"]
    assert "`PUT .../end`" in operations["post", f"{trial}/reports"]["description"]
    schemas = described["components"]["schemas"]
    assert "`PUT .../end`" in schemas["EpochJudged"]["description"]
    assert "monitor" in schemas["EnergyMethod"]["description"]
    assert "cancelled" in schemas["FinishTrialBody"]["properties"]["outcome"]["description"]
